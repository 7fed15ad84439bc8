"""Noise, denoise, accept: moves that leave q(theta | x) as it is, whatever log r looks like.

Noise of level s0 on theta, then a draw of the reverse process (the SDE) from s0 down, is a Gibbs step of the pair
(theta_0, z): it is reversible with respect to the distribution f that the denoiser stands for. Accepted with probability
min(1, w(theta') / w(theta)), it is reversible with respect to f w:

    f = p(theta | x), w = r                      no gradient of log r is needed; it may have steps and bounds
    f = p(theta | x) exp(quadratic), w = 0 or 1  transport inside the bounds of q

A move that is not accepted leaves a copy where resampling made one: several sweeps leave few.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import ROWS, Sampler, randn, run

__all__ = ["sweep"]

LOW = 0.3  # where fewer moves are accepted, the next ones are shorter
SHORTER = 0.6


def sweep(
    denoiser: Denoiser,
    theta: Tensor,
    log_w: Callable[[Tensor], Tensor],
    s0: float,
    steps: int,
    sweeps: int,
    generator: Generator,
) -> tuple[Tensor, float, float]:
    """Moves every member of a pool some times.

    Arguments:
        denoiser: that of f, with one bound observation.
        theta: the pool, with shape (n, D).
        log_w: gives log w, with shape (n,) on the CPU, of a pool; -inf where there is no mass.
        s0: the noise level of the first sweep.
        steps: sampler steps from s0 down.
        sweeps: how often each member is moved.
        generator: the source of randomness.

    Returns: the pool, the noise level of the last sweep, and the share of moves accepted in it.
    """
    sampler, now, used, accepted = Sampler(steps=steps, eta=1.0), log_w(theta), s0, 1.0
    for _ in range(sweeps):
        used = s0
        moved = []
        for part in theta.split(ROWS):
            z = (part + s0 * randn(part, generator)).unsqueeze(1)
            moved.append(run(denoiser, len(part), sampler, generator, z=z, s_start=s0)[:, 0])
        new = torch.cat(moved)
        then = log_w(new)
        chance = (then - now).nan_to_num(nan=-torch.inf)  # from nowhere to nowhere
        take = torch.rand(len(theta), generator=generator).log() < chance
        theta = torch.where(take.to(theta.device).unsqueeze(-1), new, theta)
        now = torch.where(take, then, now)
        accepted = float(take.float().mean())
        if accepted < LOW:
            s0 = max(SHORTER * s0, 2 * denoiser.s_min)
    return theta, used, accepted
