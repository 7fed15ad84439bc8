"""Ornstein-Uhlenbeck process (OUP): a mean-reverting series of 25 points.

    y_{k+1} = y_k + 0.2 theta_1 (exp(theta_2) - y_k) + e_k,     e_k ~ N(0, 0.05),     k = 0..24,     y_0 = 10.

(The paper's 0.5 w_k with w_k ~ N(0, 0.2).) y_0 is the same in every series and is left out: x = (y_1, ...,
y_25).

This is linear with Gaussian noise in y: with a = 1 - 0.2 theta_1 and b = 0.2 theta_1 exp(theta_2), m steps
on,

    y_{k+m} | y_k ~ N(a^m y_k + b (1 + a + ... + a^{m-1}), 0.05 (1 + a^2 + ... + a^{2(m-1)})),

so the likelihood of any subset of the points is exact, and so are the points between. The posterior is drawn
from a grid on theta (`grid_proposal`).

**Exploding series.** For theta_1 < 0 the series runs away, by a factor 1 + 0.2 |theta_1| a step. Nothing is
clipped: x is what the recursion gives (over two million draws of each of the four priors, |x| stays below
30,000, where a float32 is still a hundred times finer than the noise). Scale such data by medians and
quantiles, not by means and standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from reprior import priors
from reprior.networks.fit import Training
from reprior_bench.tasks.base import FORECAST, Recipe, Task, log_density
from reprior_bench.tasks.grid import grid_proposal
from reprior_bench.tasks.rejection import rejection_sample

__all__ = ["Oup"]

_STEPS, _DT, _VARIANCE, _START = 25, 0.2, 0.05, 10.0


class Oup(Task):
    """The OUP task."""

    name = "oup"
    title = "OUP"
    dim = 2
    x_dim = _STEPS
    parameters = ("rate", "log_level")
    reference_kind = "exact: a grid on the transition likelihood, corrected by rejection"
    description = "A mean-reverting series of 25 points; its posterior bends and its data can explode."
    is_series = True
    has_joint_reference = True
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "simformer": Recipe(replace(FORECAST, weigh=True), Training(steps=36_000, batch=128))
    }
    paper_patch = 5

    def _priors(self, regime: str) -> tuple[Distribution, Distribution]:
        if regime == "id":
            return _isotropic(2.0, 0.0, 0.5), _isotropic(1.8, 0.0, 0.3)
        return _isotropic(1.5, 1.5, 0.5), _isotropic(1.8, 0.0, 0.5)

    def _simulate(self, theta: Tensor, rng: np.random.Generator) -> Tensor:
        nothing = torch.zeros(_STEPS, dtype=torch.bool)
        return _fill(theta, torch.zeros(_STEPS, dtype=torch.float64), nothing, rng)

    def _log_likelihood(self, theta: Tensor, x: Tensor) -> Tensor:
        return _log_likelihood(theta, x, torch.ones(_STEPS, dtype=torch.bool))

    def _reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        return _posterior(x, torch.ones(_STEPS, dtype=torch.bool), n, prior, rng)

    def _joint_reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        def log_f(theta: Tensor) -> Tensor:
            return log_density(prior, theta) + torch.stack([self._log_likelihood(theta, row) for row in x]).sum(0)

        pool = priors.sample(prior, 16_384, int(rng.integers(2**31))).double()
        return rejection_sample([grid_proposal(log_f, pool.amin(0), pool.amax(0))], n, rng)

    def _predict(self, x: Tensor, observed: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        return _fill(_posterior(x, observed, n, prior, rng), x, observed, rng)


def _isotropic(first: float, second: float, variance: float) -> Distribution:
    return MultivariateNormal(torch.tensor([first, second]), variance * torch.eye(2))


def _coefficients(theta: Tensor) -> tuple[Tensor, Tensor]:
    """a and b, each with shape (n,)."""
    return 1 - _DT * theta[:, 0], _DT * theta[:, 0] * torch.exp(theta[:, 1])


def _transition(a: Tensor, b: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """factor, shift and variance of y_{k+m} given y_k, each with shape (n,)."""
    power, sum_a, sum_a2 = torch.ones_like(a), torch.zeros_like(a), torch.zeros_like(a)
    for _ in range(m):
        sum_a, sum_a2, power = sum_a + power, sum_a2 + power**2, power * a
    return power, b * sum_a, _VARIANCE * sum_a2


def _log_likelihood(theta: Tensor, x: Tensor, observed: Tensor) -> Tensor:
    """log p(observed points | theta), with shape (n,).

    Transitions over the same number of steps m share factor f, shift s and variance v. Their sum of squares,
    sum_k (x_k - f y_k - s)^2, is quadratic in (f, s): it is expanded about its smallest value, where no
    digits are lost.
    """
    a, b = _coefficients(theta)
    value = torch.zeros_like(a)
    known = torch.nonzero(observed).flatten()
    steps = torch.diff(known, prepend=torch.tensor([-1]))
    before = torch.cat([torch.tensor([_START], dtype=torch.float64), x[known[:-1]]])[: len(known)]
    for m in steps.unique().tolist():
        y, target = before[steps == m], x[known][steps == m]
        centred = y - y.mean()
        spread = (centred**2).sum()
        slope = (centred @ target) / spread if spread > 0 else torch.zeros(())
        rest = target - target.mean() - slope * centred
        factor, shift, variance = _transition(a, b, m)
        offset = target.mean() - factor * y.mean() - shift
        square = (rest**2).sum() + spread * (factor - slope) ** 2 + len(y) * offset**2
        value -= 0.5 * (square / variance + len(y) * torch.log(2 * torch.pi * variance))
    return value.nan_to_num(nan=-torch.inf, neginf=-torch.inf)


def _posterior(x: Tensor, observed: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
    """n draws of theta given the observed points."""

    def from_prior(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        theta = priors.sample(prior, count, int(rng.integers(2**31))).double()
        return theta, _log_likelihood(theta, x, observed)

    def log_f(theta: Tensor) -> Tensor:
        return log_density(prior, theta) + _log_likelihood(theta, x, observed)

    pool, _ = from_prior(16_384, rng)
    low, high = pool.amin(0), pool.amax(0)
    grid = grid_proposal(log_f, low - (high - low), high + (high - low))
    return rejection_sample([grid, from_prior], n, rng)


def _fill(theta: Tensor, x: Tensor, observed: Tensor, rng: np.random.Generator) -> Tensor:
    """The series (n, 25): unobserved points are drawn given the one before and the next observed one."""
    a, b = _coefficients(theta)
    known = torch.nonzero(observed).flatten().tolist()
    noise = torch.from_numpy(rng.standard_normal((_STEPS, theta.shape[0])))
    y, series = torch.full_like(a, _START), []
    for k in range(_STEPS):
        if observed[k]:
            y = x[k].expand_as(a)
        else:
            mean, variance = a * y + b, torch.full_like(a, _VARIANCE)
            ahead = [j for j in known if j > k]
            if ahead:
                factor, shift, spread = _transition(a, b, ahead[0] - k)
                gain = variance * factor / (factor**2 * variance + spread)
                mean, variance = (
                    mean + gain * (x[ahead[0]] - factor * mean - shift),
                    variance * (1 - gain * factor),
                )
            y = mean + variance.sqrt() * noise[k]
        series.append(y)
    return torch.stack(series, dim=-1)
