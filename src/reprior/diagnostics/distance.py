"""How far an observation is from the stored simulations.

The distance to the fifth nearest stored x, in standardised units (robust scale, far outliers compressed), divided by
what 99 % of the stored x have themselves. Above 1 the observation is unlike nearly everything that was simulated,
and the base answers by extrapolation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reprior.posterior import Posterior

__all__ = ["x_distance"]

NEIGHBOUR = 5
STORED = 10_000  # stored x that are searched
PROBES = 500  # stored x that show what is usual
QUANTILE = 0.99


def x_distance(posterior: Posterior, x: Tensor, seed: int) -> float:
    """The relative distance of x; entries of x that are missing are left out.

    Arguments:
        posterior: the base posterior, with its simulations.
        x: the observation, with shape (1, m).
        seed: picks the stored x.
    """
    simulations = posterior.simulations
    assert simulations is not None
    order = torch.randperm(len(simulations), generator=torch.Generator().manual_seed(seed))
    probes = min(PROBES, len(order) // 5)
    if probes < NEIGHBOUR:
        return float("nan")
    seen = ~torch.isnan(x[0])
    scale = posterior.scales.x
    some = scale.forward(simulations.x[order[: probes + STORED]])[:, seen].nan_to_num(nan=0.0)
    usual = _nearest(some[:probes], some[probes:]).quantile(QUANTILE)
    return float(_nearest(scale.forward(x)[:, seen], some[probes:])[0] / usual.clamp(min=1e-12))


def _nearest(x: Tensor, stored: Tensor) -> Tensor:
    """The distance of each row of x to its NEIGHBOUR-th nearest stored row."""
    return torch.cdist(x, stored).kthvalue(min(NEIGHBOUR, len(stored)), dim=1).values
