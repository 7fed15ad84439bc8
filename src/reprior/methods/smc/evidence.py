"""log Z(x) = log E_p(theta|x)[r] from the particles, with its standard error.

The mean weight is unbiased for the Z of what the base draws on its grid. Groups of particles that never mixed tell its Monte
Carlo error. The grid itself makes a posterior a little too wide or too narrow, by a fraction e of its width, which moves
log Z by e (E_q |u|^2 - D), u the whitened distance from the middle of p(theta | x): small, unless q lies out in its tails.
An error above ONE is no number: it is given as inf.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reprior.methods.smc.sampler import Particles
from reprior.methods.smc.spread import Spread

__all__ = ["log_evidence"]

WIDER = 0.003  # how much too wide, or narrow, 32 steps may leave a posterior
ONE = 0.7
FEWEST = 4  # groups that an error needs


def log_evidence(particles: Particles, spread: Spread, steps: int) -> tuple[Tensor, Tensor]:
    """log Z and its standard error at each observation, with shape (K,).

    Arguments:
        particles: a pass.
        spread: how wide p(theta | x) is.
        steps: the setting of the grid: noise levels from 10 down to .002.
    """
    each = particles.group_log_z
    groups, observations = each.shape
    log_z = torch.logsumexp(each, 0) - math.log(groups)
    if groups < FEWEST:
        return log_z, torch.full((observations,), math.inf, dtype=torch.float64)
    error = (each - log_z).exp().std(0) / math.sqrt(groups)
    # Few groups make a heavy-tailed error: as Student's t, so that two errors hold 95 %.
    error = error * (1 + 1.5 / (groups - 1))
    w = torch.softmax(particles.log_w, 0)
    gap = particles.theta.double() - spread.centre
    along = torch.einsum("nkd,kde->nke", gap, spread.axes)
    far = (w * (along.square() / spread.values).sum(-1)).sum(0) - gap.shape[-1]
    error = (error.square() + (WIDER * (32 / steps) ** 2 * far).square()).sqrt()
    return log_z, torch.where(torch.isfinite(log_z) & (error < ONE), error, torch.inf)
