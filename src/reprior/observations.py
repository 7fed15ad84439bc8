"""Stored observations that are likely under q, at which methods are trained, chosen and judged.

Stored pairs (theta, x) follow p(theta) p(x | theta). Resampled with weights r = q/p they follow q(theta) p(x | theta). Where
a few pairs would carry all the weight, the weights are tempered to r^b, with the largest b <= 1 that leaves enough
effective pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from reprior.errors import InputError
from reprior.weights import temper_step

if TYPE_CHECKING:
    from reprior.change import PriorChange
    from reprior.simulations import Simulations

__all__ = ["likely_x", "tempered_weights", "usable"]


def tempered_weights(log_r: Tensor, effective: float) -> Tensor:
    """Normalised weights r^b with the largest b <= 1 that leaves an effective number of rows; equal ones if r is 0.

    Arguments:
        log_r: log ratios, with shape (n,).
        effective: the effective number of rows to keep.
    """
    if bool((log_r == -torch.inf).all()):
        return torch.full_like(log_r, 1 / len(log_r))
    power = temper_step(log_r, 1.0, effective / len(log_r))
    return torch.softmax(power * log_r, 0)


def likely_x(simulations: Simulations, change: PriorChange, n: int, generator: Generator) -> Tensor:
    """Stored observations that are likely under q, with shape (n, m): resampled with weights r, tempered if need be."""
    weights = tempered_weights(change.log_r(simulations.theta), min(100.0, len(simulations) / 10))
    return simulations.x[torch.multinomial(weights, n, replacement=True, generator=generator)]


def usable(simulations: Simulations, observed: Tensor | None, whole: bool = False) -> Simulations:
    """The simulations that have all entries of x that are needed.

    Arguments:
        simulations: the stored simulations, which may have missing entries.
        observed: which entries of x are observed, with shape (m,); None returns all simulations.
        whole: whether the other entries, which are predicted, are needed too.
    """
    if observed is None or not simulations.has_missing:
        return simulations
    kept = ~simulations.x[:, torch.ones_like(observed) if whole else observed].isnan().any(1)
    if int(kept.sum()) < 2:
        raise InputError(
            f"{int(kept.sum())} of {len(simulations)} stored simulations have all entries of x that are needed here: too few"
        )
    return simulations.subset(kept)
