"""How far an observation is from the stored simulations.

The distance to the fifth nearest stored x, in standardised units (robust scale, far outliers compressed), divided by
what 99 % of the stored x have themselves. Above 1 the observation is unlike nearly everything that was simulated,
and the base answers by extrapolation.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from reprior.info import Info
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

__all__ = ["warned", "x_distance"]

NEIGHBOUR = 5
STORED = 10_000  # stored x that are searched
PROBES = 500  # stored x that show what is usual
QUANTILE = 0.99
MANY = 0.5  # draws outside the support that are warned of


def x_distance(simulations: Simulations, scale: Standardizer, x: Tensor, seed: int = 0) -> float:
    """The relative distance of x; entries of x that are missing are left out.

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


def warned(info: Info, simulations: Simulations | None, scale: Standardizer, x: Tensor) -> Info:
    """An info, with what there is to warn of its observation: far from the simulations, or draws outside the support.

    Arguments:
        info: what a call of `sample` did.
        simulations: the stored simulations; None if they were not kept.
        scale: the standardisation of x.
        x: the observation, with shape (1, m).
    """
    told = list(info.warnings)
    far = 0.0 if simulations is None else x_distance(simulations, scale, x)
    if far > 1:
        told.append(
            f"x lies {far:.2g} times as far from the stored simulations as 99 % of these lie from each other: the base "
            "extrapolates there (reprior.diagnose looks closer)"
        )
    if info.rejected > MANY:
        cut = "the target prior cuts off most of the base posterior, or " if info.why else ""  # a base gives no reason
        told.append(
            f"{100 * info.rejected:.0f} % of the draws fell outside the support: {cut}the base does not fit this observation"
        )
    return replace(info, warnings=tuple(told))
