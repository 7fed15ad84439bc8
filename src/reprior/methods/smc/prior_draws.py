"""Draws of q where q cannot be sampled: from p in steps p r^b, b rising to 1, each with moves of its own.

Reweighting by r^(b' - b) keeps half of the effective draws; then every draw takes some Metropolis steps with a Gaussian
proposal, as wide as the draws are. Only log r and log p are asked, never the base.

Del Moral, Doucet, Jasra (2006), Sequential Monte Carlo samplers, J. R. Stat. Soc. B 68, 411.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reprior.weights import systematic, temper_step

__all__ = ["draws_of"]

KEPT = 0.5  # relative ESS that a step keeps
MOVES = 8
STAGES = 40
SCALE = 1.7  # of the proposal: 2.4 / sqrt(d) is best for a Gaussian, less for what is not


def draws_of(log_r: Callable[[Tensor], Tensor], log_p: Callable[[Tensor], Tensor], theta: Tensor, seed: int) -> Tensor:
    """Draws of p r, with shape (n, d).

    Arguments:
        log_r: (n, d) -> (n,).
        log_p: likewise.
        theta: draws of p, with shape (n, d).
        seed: makes it repeatable.
    """
    generator = torch.Generator().manual_seed(seed)
    n, d = theta.shape
    value, prior, power = log_r(theta).double(), log_p(theta).double(), 0.0
    if not bool((value > -torch.inf).any()):
        return theta[:0]
    for _ in range(STAGES):
        rise = temper_step(value, 1 - power, KEPT)
        log_w = torch.where(value > -torch.inf, rise * value, -torch.inf)
        index = systematic(log_w, n, generator)
        theta, value, prior, power = theta[index], value[index], prior[index], min(1.0, power + rise)
        cov = torch.cov(theta.T).reshape(d, d).double() + 1e-12 * torch.eye(d, dtype=torch.float64)
        values, axes = torch.linalg.eigh(cov)
        root = (axes * values.clamp(min=1e-14).sqrt()) * (SCALE / d**0.5)
        for _ in range(MOVES):
            size = torch.exp(-2 * torch.rand(n, 1, generator=generator, dtype=torch.float64))  # steps of many sizes
            new = theta + (size * torch.randn(n, d, generator=generator, dtype=torch.float64) @ root.T).to(theta)
            v, p = log_r(new).double(), log_p(new).double()
            gain = (p - prior) + power * (v - value)
            take = torch.rand(n, generator=generator).log() < gain.nan_to_num(nan=-torch.inf)
            theta = torch.where(take.unsqueeze(1), new, theta)
            value, prior = torch.where(take, v, value), torch.where(take, p, prior)
        if power >= 1:
            break
    return theta
