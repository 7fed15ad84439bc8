"""How far an observation is from the stored simulations.

The relative distance of x is its distance to the fifth nearest stored x, in standardised units (robust scale, far outliers
compressed), divided by the 99 % quantile of the same distance over stored x. If it is above 1, x is unlike nearly all
simulations, and the base extrapolates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

__all__ = ["distance_warning", "x_distance"]

NEIGHBOUR = 5  # the very nearest simulation may be close by chance; the fifth is a steadier measure
STORED = 10_000  # stored x among which neighbours are searched, which bounds the time
PROBES = 500  # stored x whose own distances give the quantile
QUANTILE = 0.99  # of these distances: the unit of the relative distance


def x_distance(simulations: Simulations, scale: Standardizer, x: Tensor, seed: int = 0) -> float:
    """The relative distance of x, without its missing entries; NaN if there are too few simulations.

    Arguments:
        simulations: the stored simulations.
        scale: the standardisation of x.
        x: the observation, with shape (1, m).
        seed: picks the stored x.
    """
    order = torch.randperm(len(simulations), generator=torch.Generator().manual_seed(seed))
    probes = min(PROBES, len(order) // 5)
    if probes < NEIGHBOUR:
        return float("nan")
    seen = ~torch.isnan(x[0])
    some = scale.forward(simulations.x[order[: probes + STORED]])[:, seen].nan_to_num(nan=0.0)
    usual = _nearest(some[:probes], some[probes:]).quantile(QUANTILE)
    return float(_nearest(scale.forward(x)[:, seen], some[probes:])[0] / usual.clamp(min=1e-12))


def _nearest(x: Tensor, stored: Tensor) -> Tensor:
    """The distance of each row of x to its NEIGHBOUR-th nearest stored row."""
    return torch.cdist(x, stored).kthvalue(min(NEIGHBOUR, len(stored)), dim=1).values


def distance_warning(simulations: Simulations | None, scale: Standardizer, x: Tensor) -> tuple[str, ...]:
    """A warning if an observation, with shape (1, m), lies far from the simulations; () otherwise."""
    far = 0.0 if simulations is None else x_distance(simulations, scale, x)
    if not far > 1:
        return ()
    return (
        f"x lies {far:.2g} times as far from the stored simulations as 99 % of these lie from each other: the base "
        "extrapolates there (reprior.diagnose looks closer)",
    )
