"""Importance resampling (SIR; Rubin 1987): draw a pool from p(theta | x), weight it by r, resample.

Systematic resampling (the default): member i is kept floor(n w_i) or one more times, so there are no duplicates as long
as no weight exceeds 1/n. Multinomial resampling draws members with replacement, so there are duplicates even where all
weights are equal. Their number is reported: they are copies, not samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked
from reprior.errors import InputError
from reprior.methods.method import Drawn, Method
from reprior.weights import massless, multinomial, systematic

__all__ = ["SIR", "SIRSettings"]

KINDS = {"systematic": systematic, "multinomial": multinomial}


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


class SIR(Method):
    """Importance resampling (Rubin 1987): a pool of base samples, resampled with weights r."""

    name = "sir"
    summary = "importance resampling of a pool of base samples"
    Settings = SIRSettings
    pools = True
    reweights = True
    settings: SIRSettings

    def draw(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> Drawn:
        pool = chunked(denoiser, self.settings.pool, sampler, generator)
        log_w = self.change.log_w(pool).cpu()
        failed, resample = massless(log_w), KINDS[self.settings.resampling]
        theta = pool.new_full((n, *pool.shape[1:]), torch.nan)
        duplicates = [torch.nan] * pool.shape[1]
        for k in range(pool.shape[1]):
            if k not in failed:
                index = resample(log_w[:, k], n, generator)
                theta[:, k], duplicates[k] = pool[index.to(pool.device), k], float(n - len(index.unique()))
        return Drawn(theta, log_w, failed=failed, figures={"duplicates": tuple(duplicates)})

    def lighter(self, draws: int = 200) -> Method:
        return SIR(self.problem, replace(self.settings, pool=min(draws, self.settings.pool)))
