"""A guided denoiser for every method, also for those that work on a pool of samples.

Methods such as rejuvenate and sir (and mixtures by transport) draw; they have no guided denoiser. Theirs is made from
their own draws theta_i of q(theta | x): above the noise s0 at which the method lets go of its pool it is the empirical one,

    E[theta_0 | z] = sum_i w_i theta_i,      w_i ~ exp(-|z - theta_i|^2 / (2 s^2))

and below it is the method's own guidance. Its samples are the draws with noise s0 added and guided down again: the same
distribution. Where a method has no guidance below s0 (log r without a gradient, bounds of q that cut the posterior: it
accepts or rejects its moves), there is no such denoiser.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.diffusion.denoiser import Denoiser, Wrapped
from reprior.errors import InputError
from reprior.methods.plug_in import AnchorGuided, posterior_draws, precision_of
from reprior.quadratic import find_quadratic
from reprior.methods.rejuvenate import RejuvenateGuidance
from reprior.methods.transport import Transported

__all__ = ["Pooled", "guided_denoiser"]

POOL = 2_000  # draws behind the empirical denoiser
BLOCK = 1_000  # rows compared with the pool at once: a block of both stays in the cache
WIDE = 3.0  # noise above this many widths of the pool sees only its mean and covariance


class Pooled(Wrapped):
    """The empirical denoiser of a pool above the noise s0 (linear where the noise is far wider), another one below.

    Arguments:
        below: the denoiser up to s0.
        pool: draws of q(theta | x), with shape (n, d).
        s0: the noise level between the two.
    """

    def __init__(self, below: Denoiser, pool: Tensor, s0: float):
        super().__init__(below)
        self.pool, self.s0 = pool, s0
        self.centre = pool.mean(0)
        self.cov = torch.cov(pool.T).reshape(pool.shape[1], pool.shape[1])
        self.half = pool.square().sum(1) / 2

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        level = float(s)
        if level <= self.s0:
            return self.inner.mean(z, s)
        if level > WIDE * float(self.cov.diagonal().amax().sqrt()):
            noise = level**2 * torch.eye(len(self.cov), dtype=z.dtype, device=z.device)
            gain = torch.linalg.solve(self.cov + noise, self.cov)  # C (C + s^2 I)^-1: the two commute
            return self.centre + (z - self.centre) @ gain
        parts = []
        for part in z.reshape(-1, z.shape[-1]).split(BLOCK):
            logits = torch.addmm(-self.half, part, self.pool.T) / level**2
            parts.append(torch.softmax(logits, 1) @ self.pool)
        return torch.cat(parts).reshape(z.shape)


def guided_denoiser(adapted: AdaptedPosterior, denoiser: Denoiser, generator: torch.Generator) -> Denoiser | None:
    """The denoiser of q(theta | x) at one observation, for any method; None where the method has only draws."""
    guidance, change = adapted.guidance, adapted.change
    try:
        return guidance.guide(denoiser, generator)
    except InputError:  # a method that works on a pool
        pool, notes = guidance.draw(denoiser, POOL, adapted.sampler, generator)
    pool = pool[:, 0]
    width = float(pool.std(0).mean())
    quadratic = find_quadratic(change)
    s0 = width * POOL ** (-1 / (denoiser.dim + 4))
    draws = posterior_draws(denoiser, generator)
    cut = bool((change(draws) == -torch.inf).any())  # draws that end outside would be dropped, and the edge emptied
    if cut or "accepted" in notes or not (quadratic.exact or change.differentiable):
        return None
    if isinstance(guidance, RejuvenateGuidance):
        s0 = float(notes["s0"][0])
        if guidance.below == "transport":
            return Pooled(Transported(denoiser, quadratic), pool, s0)
        if guidance.below == "learned" and guidance.learned is not None:
            return Pooled(guidance.learned.guide(denoiser, generator), pool, s0)
    precision = precision_of(draws, len(quadratic.h))
    return Pooled(AnchorGuided(denoiser, change, quadratic, precision), pool, s0)
