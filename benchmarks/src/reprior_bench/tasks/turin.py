"""Turin, read literally: a radio channel with one path, in decibels.

With theta = (g_0, T_rev, lambda_0, sigma^2), B = 0.5 GHz, N = 101 frequencies, df = B / (N - 1) and tau_max =
1e-7 s:

    paths       Poisson(lambda_0 tau_max) + 1, each with delay tau ~ U(0, tau_max)
    gain        alpha ~ CN(0, g_0 exp(-tau / T_rev) / lambda_0)
    transfer    Y_k = sum over paths of alpha exp(-i 2 pi df k tau) + CN(0, sigma^2),    k = 0..N-1
    data        x_n = 10 log10(|IFFT(Y)_n|^2 + 1e-10)

CN(0, v) is circular with E|z|^2 = v; IFFT carries the factor 1/N.

The paper feeds parameters of order 0.5 to this with no rescaling. lambda_0 tau_max is then 5e-8: there is one
path, and exp(-tau / T_rev) = 1. That makes the likelihood a two-dimensional integral over the delay and
|alpha|^2, which is computed (see `turin_likelihood`); it depends on g_0 / lambda_0 and sigma^2 only, and what
the data teach is sigma^2. The simulator draws the Poisson number all the same; the likelihood leaves out a
second path (probability 5e-8) and the decay (relative change of the gain 2e-7), and refuses parameters for
which these would exceed 1e-3 and 1e-2.

All four parameters must be positive. Rows of theta that are not give rows of NaN (the log-likelihood is -inf
there); under the task's own priors a draw is not positive with a probability of 3e-9 or less.
`turin_physical` is the same channel at its physical scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from reprior import priors
from reprior.errors import InputError
from reprior.networks.embedding import Embedding
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings
from reprior_bench.tasks.base import FORECAST, Recipe, Task
from reprior_bench.tasks.rejection import Proposal, rejection_sample
from reprior_bench.tasks.student import student_proposal
from reprior_bench.tasks.turin_likelihood import N_POINTS, OnePath, amplitude

__all__ = ["Turin"]

_DF, _TAU_MAX, _EPSILON = 0.5e9 / (N_POINTS - 1), 1e-7, 1e-10
_ROWS = 8192


class Turin(Task):
    """The literal Turin task."""

    name = "turin"
    title = "Turin"
    dim = 4
    x_dim = N_POINTS
    parameters = ("g_0", "T_rev", "lambda_0", "sigma2")
    reference_kind = "exact: rejection from the prior with the one-path likelihood, a 2-D integral by quadrature"
    description = "A radio channel of 101 points as the paper states it: one path, only the noise is informed."
    is_series = True
    recipes: ClassVar[Mapping[str, Recipe]] = {
        # A channel looks alike all along but for the echo: an embedding that finds the peak.
        "mlp": Recipe(
            MLPSettings(
                width=96,
                blocks=2,
                embedding=Embedding(kind="peak", item=5, step=2, width=64, features=24),
                guess="gaussian",
            ),
            Training(steps=12_000, patience=3),
        ),
        "simformer": Recipe(FORECAST, Training(steps=4_000, batch=128)),
    }
    paper_patch = 20

    def _priors(self, regime: str) -> tuple[Distribution, Distribution]:
        q = _diagonal((0.6, 0.5, 0.5, 0.5), (0.02, 0.05, 0.05, 0.06))
        if regime == "id":
            return _diagonal((0.64, 0.55, 0.5, 0.6), (0.05, 0.08, 0.07, 0.1)), q
        return _diagonal((0.7, 0.6, 0.65, 0.35), (0.04, 0.07, 0.06, 0.06)), q

    def _simulate(self, theta: Tensor, rng: np.random.Generator) -> Tensor:
        rows = [_simulate(chunk.numpy(), rng) for chunk in theta.split(_ROWS)]
        return torch.from_numpy(np.concatenate(rows)) if rows else torch.empty(0, N_POINTS)

    def _log_likelihood(self, theta: Tensor, x: Tensor) -> Tensor:
        power = _to_power(x)
        # The density of x, not of the power: d power / d x = (power + epsilon) log(10) / 10.
        jacobian = np.log((power + _EPSILON) * np.log(10) / 10).sum()
        return _log_path(OnePath(power, np.arange(N_POINTS)), theta) + jacobian

    def _reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        return _posterior(OnePath(_to_power(x), np.arange(N_POINTS)), n, prior, rng)

    def _predict(self, x: Tensor, observed: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        if not bool(observed.any()):
            return self._simulate(priors.sample(prior, n, int(rng.integers(2**31))).double(), rng)
        path = OnePath(_to_power(x), torch.nonzero(observed).flatten().numpy())
        theta = _posterior(path, n, prior, rng)
        variance = theta[:, 3].numpy()
        delay, gain = path.draw(variance, (theta[:, 0] / theta[:, 2]).numpy(), rng)
        # The phase of the gain does not matter: the noise is circular and independent over n.
        signal = np.sqrt(gain)[:, None] * amplitude(delay, np.arange(N_POINTS))
        return torch.from_numpy(_to_decibel(signal + _noise(variance / N_POINTS, rng)))


def _diagonal(mean: tuple[float, ...], scale: tuple[float, ...]) -> Distribution:
    return Independent(Normal(torch.tensor(mean), torch.tensor(scale)), 1)


def _noise(variance: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """CN(0, variance), with shape (n, 101), for variances (n,)."""
    z = rng.standard_normal((2, len(variance), N_POINTS))
    return np.sqrt(variance / 2)[:, None] * (z[0] + 1j * z[1])


def _to_decibel(y: np.ndarray) -> np.ndarray:
    return 10 * np.log10(np.abs(y) ** 2 + _EPSILON)


def _to_power(x: Tensor) -> np.ndarray:
    """|y|^2 of data in decibels; what rounding makes negative is zero."""
    return np.maximum(10 ** (x.numpy() / 10) - _EPSILON, 0.0)


def _simulate(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """x (n, 101) for theta (n, 4)."""
    valid = np.all(theta > 0, axis=-1)
    g_0, t_rev, lambda_0, variance = np.where(valid[:, None], theta, 1.0).T
    n_paths = rng.poisson(lambda_0 * _TAU_MAX) + 1
    y = _noise(variance, rng)
    for path in range(n_paths.max()):
        tau = rng.uniform(0, _TAU_MAX, len(theta))
        spread = np.sqrt(g_0 * np.exp(-tau / t_rev) / lambda_0 / 2) * (path < n_paths)
        alpha = spread * (rng.standard_normal(len(theta)) + 1j * rng.standard_normal(len(theta)))
        y += alpha[:, None] * np.exp(-2j * np.pi * _DF * tau[:, None] * np.arange(N_POINTS))
    return np.where(valid[:, None], _to_decibel(np.fft.ifft(y, axis=-1)), np.nan)


def _log_path(path: OnePath, theta: Tensor) -> Tensor:
    """The one-path log-likelihood of the power, with shape (n,); -inf where a parameter is not positive."""
    values = theta.numpy()
    g_0, t_rev, lambda_0, variance = values.T
    valid = np.all(values > 0, axis=-1)
    if bool((valid & ((t_rev < 1e-5) | (lambda_0 > 1e4))).any()):
        raise InputError(
            "turin: the likelihood is that of one path without decay; it takes T_rev >= 1e-5 and "
            f"lambda_0 <= 1e4, got T_rev down to {t_rev[valid].min():.2g} "
            f"and lambda_0 up to {lambda_0[valid].max():.2g}"
        )
    value = np.full(len(theta), -np.inf)
    if valid.any():
        value[valid] = path.log_likelihood(variance[valid], g_0[valid] / lambda_0[valid])
    return torch.from_numpy(value)


def _posterior(path: OnePath, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
    def from_prior(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        theta = priors.sample(prior, count, int(rng.integers(2**31))).double()
        return theta, _log_path(path, theta)

    def mixture(rng: np.random.Generator) -> Proposal:
        return student_proposal(prior, lambda theta: _log_path(path, theta), rng)

    return rejection_sample([from_prior], n, rng, fallbacks=[mixture])
