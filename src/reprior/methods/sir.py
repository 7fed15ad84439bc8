"""Importance resampling (SIR): draw a pool from p(theta | x), weight it by r, resample.

Systematic resampling (the default): member i is kept floor(n w_i) or one more times, so there are no duplicates as long
as no weight exceeds 1/n. Multinomial resampling draws members with replacement, so there are duplicates even where all
weights are equal. Their number is reported: they are copies, not samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from reprior_bench import metrics
from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked
from reprior.errors import InputError
from reprior.methods.method import Guidance

__all__ = ["SIRGuidance", "SIRSettings", "multinomial", "systematic"]

KINDS = ("systematic", "multinomial")


@dataclass(frozen=True)
class SIRSettings:
    """Settings of importance resampling.

    Attributes:
        pool: the number of base draws that are resampled.
        resampling: "systematic" (as few duplicates as can be) or "multinomial" (with replacement).
    """

    pool: int = 20_000
    resampling: Literal["systematic", "multinomial"] = "systematic"

    def __post_init__(self) -> None:
        if self.pool < 2:
            raise InputError(f"pool must be at least 2; got {self.pool}")
        if self.resampling not in KINDS:
            raise InputError(f"resampling {self.resampling!r} is unknown; allowed: {', '.join(KINDS)}")


def systematic(log_w: Tensor, n: int, generator: Generator) -> Tensor:
    """Indices of n members, in random order, each kept as often as its weight says (up to one).

    Arguments:
        log_w: log weights, with shape (pool,).
        n: how many to keep.
    """
    check_mass(log_w.unsqueeze(1))
    weights = torch.softmax(log_w.double(), 0)
    points = (torch.arange(n, dtype=torch.float64) + torch.rand(1, generator=generator, dtype=torch.float64)) / n
    index = torch.searchsorted(weights.cumsum(0), points).clamp(max=len(weights) - 1)
    return index[torch.randperm(n, generator=generator)]


def multinomial(log_w: Tensor, n: int, generator: Generator) -> Tensor:
    """Indices of n members, drawn with replacement; arguments as in `systematic`."""
    check_mass(log_w.unsqueeze(1))
    return torch.multinomial(torch.softmax(log_w.double(), 0), n, replacement=True, generator=generator)


def check_mass(log_w: Tensor) -> None:
    """Refuses observations at which no base draw has any weight; log weights with shape (pool, K)."""
    empty = (~(log_w > -torch.inf)).all(0).nonzero()[:, 0].tolist()
    if empty:
        where = f" at observation {', '.join(map(str, empty))} of {log_w.shape[1]}" if log_w.shape[1] > 1 else ""
        raise InputError(
            f"all weights are zero{where}: no base sample has mass under the target prior; they may not agree"
        )


class SIRGuidance(Guidance):
    """Importance resampling.

    Arguments:
        change: the change of prior.
        settings: the size of the pool, and how it is resampled.
    """

    name = "sir"

    def __init__(self, change: PriorChange, settings: SIRSettings | None = None):
        self.change, self.settings = change, settings or SIRSettings()

    def draw(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> tuple[Tensor, dict[str, Any]]:
        pool = chunked(denoiser, self.settings.pool, sampler, generator)
        log_w = self.change.log_w(pool).cpu()
        check_mass(log_w)
        kept, copies = [], []
        resample = systematic if self.settings.resampling == "systematic" else multinomial
        for k in range(pool.shape[1]):
            index = resample(log_w[:, k], n, generator)
            copies.append(n - len(index.unique()))
            kept.append(pool[index.to(pool.device), k])
        ess = [metrics.ess(log_w[:, k]) for k in range(pool.shape[1])]
        return torch.stack(kept, 1), {"ess": ess, "duplicates": copies, "log_w": log_w}

    def config(self) -> dict[str, Any]:
        return {"settings": vars(self.settings)}
