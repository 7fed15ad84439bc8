"""Two Moons: a two-dimensional task whose posterior is a pair of crescents.

With angle a ~ U(-pi/2, pi/2) and radius r ~ N(0.1, 0.01^2), the data are

    c = (r cos a + 0.25, r sin a),      x = c + (-|theta_1 + theta_2|, theta_2 - theta_1) / sqrt(2).

Given x and c, the parameters are known up to the sign s of theta_1 + theta_2:

    theta = ((s u - v), (s u + v)) / sqrt(2),      u = c_1 - x_1 (which must be >= 0),      v = x_2 - c_2.

For each s this is a rotation or a reflection of c, so its Jacobian is 1 and the likelihood is the density of
c, p(x | theta) = N(r; 0.1, 0.01^2) / (pi |r|). Drawing c from the simulator and s from {-1, 1} therefore
draws theta from the normalised likelihood; accepting with probability prior(theta) / max prior gives the
exact posterior.

References:
    Lueckmann et al. (2021), Benchmarking simulation-based inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from reprior import priors
from reprior.networks.fit import Training
from reprior_bench.tasks.base import THETA_ONLY, Recipe, Task, log_density
from reprior_bench.tasks.rejection import rejection_sample

__all__ = ["TwoMoons"]

_RADIUS, _WIDTH, _SHIFT = 0.1, 0.01, 0.25


class TwoMoons(Task):
    """The Two Moons task."""

    name = "two_moons"
    title = "Two Moons"
    dim = 2
    x_dim = 2
    parameters = ("theta_1", "theta_2")
    reference_kind = "exact: rejection from the normalised likelihood, accepted by the prior"
    description = "Two crescents: a bimodal posterior with fine local structure."
    recipes: ClassVar[Mapping[str, Recipe]] = {"simformer": Recipe(THETA_ONLY, Training(steps=5_000, batch=128))}

    def _priors(self, regime: str) -> tuple[Distribution, Distribution]:
        if regime == "id":
            p = MultivariateNormal(torch.zeros(2), torch.tensor([[1.5, 0.6], [0.6, 1.5]]))
            return p, Independent(Normal(torch.tensor([0.3, 0.5]), torch.tensor([0.4, 0.3])), 1)
        p = MultivariateNormal(torch.tensor([-0.3, 0.2]), torch.tensor([[1.4, 0.6], [0.6, 1.4]]))
        return p, MultivariateNormal(torch.zeros(2), torch.tensor([[1.2, -0.2], [-0.2, 1.2]]))

    def _simulate(self, theta: Tensor, rng: np.random.Generator) -> Tensor:
        return _crescent(theta.shape[0], rng) + _offset(theta)

    def _log_likelihood(self, theta: Tensor, x: Tensor) -> Tensor:
        c = x - _offset(theta) - torch.tensor([_SHIFT, 0.0], dtype=torch.float64)
        # A negative radius (ten standard deviations off) lies left of the centre.
        r = torch.where(c[:, 0] >= 0, 1.0, -1.0) * torch.linalg.vector_norm(c, dim=-1)
        normal = Normal(torch.tensor(_RADIUS, dtype=torch.float64), torch.tensor(_WIDTH, dtype=torch.float64))
        return normal.log_prob(r) - torch.log(torch.pi * r.abs())

    def _reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        def from_likelihood(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
            c = _crescent(count, rng)
            u, v = c[:, 0] - x[0], x[1] - c[:, 1]
            s = torch.from_numpy(rng.choice([-1.0, 1.0], size=count))
            theta = torch.stack([s * u - v, s * u + v], dim=-1) / 2**0.5
            return theta, torch.where(u >= 0, log_density(prior, theta), -torch.inf)

        def from_prior(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
            theta = priors.sample(prior, count, int(rng.integers(2**31))).double()
            return theta, self._log_likelihood(theta, x)

        return rejection_sample([from_likelihood, from_prior], n, rng)


def _crescent(count: int, rng: np.random.Generator) -> Tensor:
    """c, with shape (count, 2)."""
    a = torch.from_numpy(rng.uniform(-np.pi / 2, np.pi / 2, count))
    r = torch.from_numpy(rng.normal(_RADIUS, _WIDTH, count))
    return torch.stack([r * torch.cos(a) + _SHIFT, r * torch.sin(a)], dim=-1)


def _offset(theta: Tensor) -> Tensor:
    """x - c for theta (n, 2)."""
    sums, differences = theta.sum(-1), theta[:, 1] - theta[:, 0]
    return torch.stack([-sums.abs(), differences], dim=-1) / 2**0.5
