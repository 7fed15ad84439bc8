"""Turin at its physical scale: a radio channel with many paths, and no tractable likelihood.

theta in [0, 1]^4 is mapped to lo + theta (hi - lo) for (G_0, T, lambda_0, sigma^2),

    lo = (1e-9, 1e-9, 1e7, 1e-10),      hi = (1e-8, 1e-8, 5e9, 1e-9).

With B = 0.5 GHz, N = 101 and df = B / (N - 1):

    paths       Poisson(lambda_0 / df), each with delay tau ~ U(0, 1 / df)
    gain        alpha ~ CN(0, B G_0 exp(-tau / T) / lambda_0)
    transfer    Y_k = sum over paths of alpha exp(-i 2 pi df k tau) + CN(0, sigma^2),    k = 0..N-1
    data        x_n = (10 log10 |IFFT(Y)_n|^2 + 140) / 60

These are the settings of the public code of ACE. The paper does not use this variant; it is here because all
four parameters are informed by the data (most: T and sigma^2). Its priors are this project's own: p = U[0,
1]^4 and, for q, independent Beta distributions with the means and standard deviations below.

**How it is simulated.** A channel has up to a thousand paths. With z = exp(-i 2 pi df tau) and k = 11 i + j,
the sum over paths of alpha z^k is entry (i, j) of a matrix product of (alpha z^{11 i}) and (z^j): 21 powers
for a path in place of 101. Channels of similar size share a batch; the empty places have gain zero.

theta outside [0, 1]^4 gives rows of NaN.

References:
    Turin et al. (1972), A statistical model of urban multipath propagation. Chang et al. (2024), Amortized
    probabilistic conditioning for optimization, simulation and inference (ACE).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Beta, Distribution, Independent, Uniform

from reprior.errors import InputError
from reprior_bench.tasks.base import Task

__all__ = ["TurinPhysical"]

_B, _N, _SPLIT = 0.5e9, 101, 11
_DF = _B / (_N - 1)
_LOW = torch.tensor([1e-9, 1e-9, 1e7, 1e-10], dtype=torch.float64)
_HIGH = torch.tensor([1e-8, 1e-8, 5e9, 1e-9], dtype=torch.float64)
_PLACES = 100_000

_TARGETS = {
    "id": ((0.5, 0.5, 0.5, 0.5), (0.15, 0.15, 0.15, 0.15)),
    "ood": ((0.85, 0.2, 0.8, 0.15), (0.06, 0.06, 0.06, 0.06)),
}
"""Means and standard deviations of q: the middle of the cube, and a corner of it. Weighted by q/p, 50,000 draws
of p are worth 4,500 (id) and 94 (ood)."""


class TurinPhysical(Task):
    """The Turin task at its physical scale."""

    name = "turin_physical"
    title = "Turin, physical scale"
    dim = 4
    x_dim = _N
    parameters = ("G_0", "T", "lambda_0", "sigma2")
    reference_kind = "none (implicit likelihood)"
    has_reference = False
    description = "A radio channel of 101 points with hundreds of paths: informative data, no likelihood."

    def _priors(self, regime: str) -> tuple[Distribution, Distribution]:
        p = Independent(Uniform(torch.zeros(4), torch.ones(4)), 1)
        mean, scale = (torch.tensor(values) for values in _TARGETS[regime])
        total = mean * (1 - mean) / scale**2 - 1
        return p, Independent(Beta(mean * total, (1 - mean) * total), 1)

    def _simulate(self, theta: Tensor, rng: np.random.Generator) -> Tensor:
        valid = ((theta >= 0) & (theta <= 1)).all(-1)
        g_0, decay, rate, variance = (_LOW + theta.clamp(0, 1) * (_HIGH - _LOW)).numpy().T
        n_paths = rng.poisson(rate / _DF)
        x = torch.empty(theta.shape[0], _N)
        for rows in _batches(n_paths):
            transfer = _transfer(n_paths[rows], _B * g_0[rows] / rate[rows], decay[rows], rng)
            noise = rng.standard_normal((2, len(rows), _N)) * np.sqrt(variance[rows] / 2)[:, None]
            power = torch.fft.ifft(transfer + torch.complex(*torch.from_numpy(noise)), dim=-1).abs() ** 2
            x[torch.from_numpy(rows)] = ((10 * torch.log10(power) + 140) / 60).float()
        x[~valid] = torch.nan
        return x

    def _log_likelihood(self, theta: Tensor, x: Tensor) -> Tensor:
        raise InputError("turin_physical has no tractable likelihood: the delays and gains of its paths are latent")

    def _reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        raise InputError(
            "turin_physical has no reference posterior: its likelihood is implicit. Judge a posterior on it "
            "by calibration over many simulations, or use the task turin, whose reference is exact"
        )

    def _predict(self, x: Tensor, observed: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        raise InputError("turin_physical has no reference predictive: its likelihood is implicit; use the task turin")


def _batches(n_paths: np.ndarray) -> list[np.ndarray]:
    """Rows sorted by their number of paths, in groups whose padded size is about `_PLACES`."""
    order = np.argsort(n_paths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * n_paths[order[end]] <= _PLACES and end - start < 4096:
            end += 1
        batches.append(order[start:end])
        start = end
    return batches


def _transfer(n_paths: np.ndarray, gain: np.ndarray, decay: np.ndarray, rng: np.random.Generator) -> Tensor:
    """Noiseless transfer functions (n, 101), for mean gains at delay zero (n,) and decay times (n,)."""
    n, width = len(n_paths), max(int(n_paths.max()), 1)
    u = torch.from_numpy(rng.random((n, width), dtype=np.float32))  # df tau
    spread = torch.exp(-u / torch.from_numpy(2 * _DF * decay).float()[:, None])
    spread *= torch.from_numpy(np.sqrt(gain / 2)).float()[:, None]
    spread *= torch.arange(width) < torch.from_numpy(n_paths)[:, None]
    alpha = torch.from_numpy(rng.standard_normal((2, n, width), dtype=np.float32)) * spread
    angle = -2 * torch.pi * u
    z = torch.polar(torch.ones_like(angle), angle)
    inner = _powers(z, _SPLIT)
    outer = _powers(inner[-1] * z, -(-_N // _SPLIT)) * torch.complex(*alpha)
    product = torch.einsum("inl,jnl->nij", outer, inner)
    return product.reshape(n, -1)[:, :_N]


def _powers(z: Tensor, count: int) -> Tensor:
    """1, z, ..., z^(count - 1), with shape (count, *z.shape)."""
    powers = torch.ones((count, *z.shape), dtype=z.dtype)
    for k in range(1, count):
        torch.mul(powers[k - 1], z, out=powers[k])
    return powers
