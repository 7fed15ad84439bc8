"""From weighted particles to draws: a systematic choice without copies, and accepted moves for the copies that are left.

Noise of level s on theta, then a draw of the reverse process from s down, is reversible with respect to p(theta | x); a move
is accepted with probability min(1, r' / r), which makes it reversible with respect to q(theta | x).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import ROWS, Sampler, randn, run

__all__ = ["chosen", "duplicates", "separated"]

FEW = 0.02  # of the draws, that may stay copies
SWEEPS = 12
LOW = 0.3  # acceptance below which moves are made shorter
SHORTER = 0.5


def chosen(log_w: Tensor, n: int, generator: Generator) -> Tensor:
    """Indices of n particles at each observation, systematic in the weights (n, K), in random order; shape (n, K)."""
    w = torch.softmax(log_w, 0).T.contiguous()
    start = torch.rand(len(w), 1, generator=generator, dtype=torch.float64)
    points = (torch.arange(n, dtype=torch.float64) + start) / n
    index = torch.searchsorted(w.cumsum(1), points).clamp(max=w.shape[1] - 1)
    order = torch.rand(index.shape, generator=generator).argsort(1)
    return index.gather(1, order).T


def duplicates(theta: Tensor) -> Tensor:
    """Which of the draws, with shape (n, D), are copies of another that comes earlier; shape (n,)."""
    _, place = theta.unique(dim=0, return_inverse=True)
    order = torch.argsort(place, stable=True)
    again = torch.zeros(len(theta), dtype=torch.bool)
    again[order[1:]] = place[order][1:] == place[order][:-1]
    return again


def separated(
    denoiser: Denoiser,
    theta: Tensor,
    log_r: Callable[[Tensor], Tensor],
    s: float,
    steps: int,
    generator: Generator,
) -> Tensor:
    """The draws of one observation, with shape (n, D), with their copies moved apart."""
    for _ in range(SWEEPS):
        again = duplicates(theta).nonzero()[:, 0]
        if len(again) <= FEW * len(theta):
            break
        old = theta[again]
        new = torch.cat([_moved(denoiser, part, s, steps, generator) for part in old.split(ROWS)])
        chance = log_r(new) - log_r(old)
        take = torch.rand(len(old), generator=generator).log() < chance.nan_to_num(nan=-torch.inf)
        theta = theta.clone()
        theta[again] = torch.where(take.unsqueeze(-1), new, old)
        if float(take.float().mean()) < LOW:
            s = max(SHORTER * s, 2 * denoiser.s_min)
    return theta


def _moved(denoiser: Denoiser, theta: Tensor, s: float, steps: int, generator: Generator) -> Tensor:
    z = (theta + s * randn(theta, generator)).unsqueeze(1)
    return run(denoiser, len(theta), Sampler(steps=steps, eta=1.0), generator, z=z, s_start=s)[:, 0]
