"""Noisy copies of a training set, and the base's denoised means there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from reprior.diffusion.sampler import ROWS
from reprior.diffusion.schedule import VP
from reprior.methods.learned.draws import bound
from reprior.methods.learned.training_set import TrainingSet
from reprior.posterior import Posterior
from reprior.quadratic import Quadratic

__all__ = ["NOISY_COPIES", "Rows", "add_noise", "join", "mean_over_parts", "noisy_rows"]

NOISY_COPIES = 4  # noisy copies of a training set with denoised means: each costs one evaluation of the base per row
LOG_MEAN, LOG_STD = -0.7, 1.5  # mean and spread of log s for time="log": most s lie between 0.1 and 2 prior widths


@dataclass(frozen=True)
class Rows:
    """Noisy rows of a training set.

    Attributes:
        z: noisy parameters, with shape (n, D).
        s: noise levels, with shape (n, 1).
        mean: the base's denoised means there, with shape (n, D); zeros if they were not asked for.
        row: the row of the training set, with shape (n,).
    """

    z: Tensor
    s: Tensor
    mean: Tensor
    row: Tensor


def draw_noise(n: int, time: str, s_min: float, s_max: float, generator: Generator) -> Tensor:
    """Noise levels for n rows, with shape (n, 1); time is "vp" (uniform in VP time) or "log" (log-normal)."""
    if time == "vp":
        vp = VP()
        t = vp.t_min + torch.rand(n, 1, generator=generator, dtype=torch.float64) * (vp.t_max - vp.t_min)
        return vp.s(t).float()
    return (LOG_MEAN + LOG_STD * torch.randn(n, 1, generator=generator)).exp().clamp(s_min, s_max)


def add_noise(theta: Tensor, posterior: Posterior, time: str, generator: Generator) -> tuple[Tensor, Tensor]:
    """Noisy parameters z, with shape (n, D), and their noise levels, with shape (n, 1), from theta_0, (n, D)."""
    s = draw_noise(len(theta), time, posterior.base.s_min, posterior.base.s_max, generator)
    return theta + s * torch.randn(theta.shape, generator=generator), s


@torch.no_grad()
def noisy_rows(
    posterior: Posterior,
    pool: TrainingSet,
    time: str,
    means: bool,
    generator: Generator,
    transported: Quadratic | None = None,
) -> Rows:
    """One noisy copy of every row of a training set."""
    z, s = add_noise(pool.theta, posterior, time, generator)
    row = torch.arange(len(z))
    mean = torch.zeros_like(z)
    if means:
        mean = _means(posterior, pool, z, s, transported)
    return Rows(z, s, mean, row)


def _means(posterior: Posterior, pool: TrainingSet, z: Tensor, s: Tensor, transported: Quadratic | None) -> Tensor:
    """The base's denoised means of noisy rows z, with shape (n, D), at noise s, with shape (n, 1)."""
    predict, device = z.shape[1] > posterior.dim, posterior.device
    out = torch.empty_like(z)
    if pool.draws:  # all observations have the same number of draws, so each is encoded only once
        block = max(1, ROWS // pool.draws)
        for i in range(0, len(pool.x), block):
            x = pool.x[i : i + block]
            rows = slice(i * pool.draws, (i + len(x)) * pool.draws)
            shape = (len(x), pool.draws, -1)
            z_k, s_k = (v[rows].reshape(shape).transpose(0, 1).to(device) for v in (z, s))
            mean = bound(posterior, x, predict, transported).mean(z_k, s_k)
            out[rows] = mean.transpose(0, 1).reshape(-1, z.shape[1]).cpu()
        return out
    for part in torch.arange(len(z)).split(ROWS):
        denoiser = bound(posterior, pool.x[pool.index[part]], predict, transported)
        out[part] = denoiser.mean(z[part].to(device), s[part].to(device)).cpu()
    return out


def mean_over_parts(value: Callable[[Tensor], Tensor], rows: Tensor) -> float:
    """The mean of a loss over many rows, computed in parts of ROWS rows to bound the memory.

    Arguments:
        value: the mean loss of some rows, given their indices.
        rows: the indices of all, with shape (n,).
    """
    return sum(float(value(part)) * len(part) for part in rows.split(ROWS)) / len(rows)


def join(copies: list[Rows]) -> Rows:
    """Several noisy copies as one set of rows."""
    return Rows(*(torch.cat([getattr(c, name) for c in copies]) for name in ("z", "s", "mean", "row")))
