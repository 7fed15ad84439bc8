"""A Gaussian part of the change, taken over by transport.

Where q is narrow, or shifted far, a Gaussian part of log r is found about where the weights are, the base is transported by
it (exact, whatever the shape of the posterior), and the particles see only what is left: r divided by that part. A part with
lighter tails than q leaves a ratio without bound out there: the pilot's ESS tells, and decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked
from reprior.methods.smc.region import Region
from reprior.methods.transport import Transported, why_not
from reprior.quadratic import Quadratic, local_part
from reprior.weights import relative_ess, temper_step

__all__ = ["Under", "take_out"]

REFITS = 3
PROBES = 1_000
TEMPER = 0.1  # relative ESS that the weights of a fit keep
REACH = 3.0  # posterior widths that a transported process must be able to start from
SAMPLER = Sampler(steps=24)


@dataclass(frozen=True)
class Under:
    """What is left when transport has taken its part.

    Attributes:
        part: what was taken.
        denoiser: the transported base.
        region: the rest of log r with its trusted region.
        twist: that of the rest.
        draws: some draws of the transported base, with shape (n, 1, D).
        ess: the relative ESS of the rest of r over these draws.
    """

    part: Quadratic
    denoiser: Denoiser
    region: Region
    twist: Any
    draws: Tensor
    ess: float


def take_out(denoiser: Denoiser, region: Region, lowest: float, twist: Any, generator: Generator) -> Under | None:
    """The Gaussian part whose rest is most even over its draws; None if transport can take none.

    Arguments:
        denoiser: the base with one bound observation.
        region: the change of prior.
        lowest: the lowest log p that counts.
        twist: that of the whole change.
        generator: the source of randomness.
    """
    d, found = len(region.change.scale.shift), None
    draws = chunked(denoiser, PROBES, SAMPLER, generator)
    log_r = region.log_r(draws, lowest)[:, 0]
    log_w, best = log_r, relative_ess(log_r)
    for _ in range(REFITS):
        if not bool(torch.isfinite(log_w).any()):
            break
        weight = torch.softmax(temper_step(log_w, 1.0, TEMPER) * log_w, 0)
        part = local_part(draws[:, 0, :d].cpu(), log_r, weight, denoiser.noise)
        if part is None or why_not([part], denoiser.noise, denoiser.dim > d):
            break
        moved = Transported(denoiser, part)
        if moved.s_max < min(REACH * float(draws.std(0).max()), denoiser.s_max):
            break
        rest = twist.minus(part)
        if rest is None:
            break
        left = region.minus(part)
        draws = chunked(moved, PROBES, SAMPLER, generator)
        log_w, log_r = left.log_r(draws, lowest)[:, 0], region.log_r(draws, lowest)[:, 0]
        ess = relative_ess(log_w)
        if ess <= best:
            break
        found, best = Under(part, moved, left, rest, draws, ess), ess
    return found
