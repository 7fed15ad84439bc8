"""Gaussian Linear: the mean of a 6-dimensional Gaussian of known covariance.

    x | theta ~ N(theta, 0.1 I_6).

A prior sum_k w_k N(m_k, S_k) has the posterior sum_k w'_k N(m'_k, S'_k) with

    S'_k = (S_k^-1 + 10 I)^-1,   m'_k = S'_k (S_k^-1 m_k + 10 x),   w'_k ~ w_k N(x; m_k, S_k + 0.1 I).

Any other prior is sampled by rejection, from N(x, 0.1 I) accepted by the prior or from the prior accepted by
the likelihood, whichever accepts more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)

from reprior import priors
from reprior.errors import InputError
from reprior.networks.fit import Training
from reprior_bench.tasks.base import THETA_ONLY, Recipe, Task, log_density
from reprior_bench.tasks.rejection import Proposal, rejection_sample
from reprior_bench.tasks.student import student_proposal

__all__ = ["GaussianLinear", "gaussian_components"]

_VARIANCE = 0.1


class GaussianLinear(Task):
    """The Gaussian Linear task."""

    name = "gaussian_linear"
    title = "Gaussian Linear"
    dim = 6
    x_dim = 6
    parameters = tuple(f"theta_{i}" for i in range(1, 7))
    reference_kind = "exact: closed form for Gaussian and mixture priors, rejection for any other"
    description = "The mean of a 6-dimensional Gaussian: a posterior in closed form."
    has_joint_reference = True
    noise_variance = _VARIANCE
    recipes: ClassVar[Mapping[str, Recipe]] = {"simformer": Recipe(THETA_ONLY, Training(steps=1_000, batch=128))}

    def _priors(self, regime: str) -> tuple[Distribution, Distribution]:
        ones, eye = torch.ones(6), torch.eye(6)
        equal = 0.2 * torch.ones(6, 6) + 0.8 * eye
        if regime == "id":
            modes = MultivariateNormal(torch.stack([0.6 * ones, -0.6 * ones]), equal.expand(2, 6, 6))
            return MultivariateNormal(torch.zeros(6), equal), MixtureSameFamily(Categorical(torch.ones(2) / 2), modes)
        p = MultivariateNormal(torch.zeros(6), -0.1 * torch.ones(6, 6) + 1.1 * eye)
        return p, MultivariateNormal(1.1 * ones, equal)

    def _simulate(self, theta: Tensor, rng: np.random.Generator) -> Tensor:
        return theta + _VARIANCE**0.5 * torch.from_numpy(rng.standard_normal(tuple(theta.shape)))

    def _log_likelihood(self, theta: Tensor, x: Tensor) -> Tensor:
        square = ((x - theta) ** 2).sum(-1)
        return -square / (2 * _VARIANCE) - 0.5 * self.x_dim * np.log(2 * np.pi * _VARIANCE)

    def _reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        components = gaussian_components(prior)
        if components is not None:
            return _closed_form(x, n, *components, rng)

        def from_likelihood(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
            theta = self._simulate(x.expand(count, -1), rng)
            return theta, log_density(prior, theta)

        def from_prior(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
            theta = priors.sample(prior, count, int(rng.integers(2**31))).double()
            return theta, self._log_likelihood(theta, x)

        def mixture(rng: np.random.Generator) -> Proposal:
            return student_proposal(prior, lambda theta: self._log_likelihood(theta, x), rng)

        return rejection_sample([from_likelihood, from_prior], n, rng, fallbacks=[mixture])

    def _joint_reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        components = gaussian_components(prior)
        if components is None:
            raise InputError(f"{self.name} has a joint reference for Gaussian priors and mixtures of them alone")
        # The mean of K observations is sufficient, and is one observation of variance 0.1 / K.
        return _closed_form(x.mean(0), n, *components, rng, _VARIANCE / len(x))


def gaussian_components(prior: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    """The parts of a Gaussian or of a mixture of Gaussians, in float64; None for any other prior.

    Returns: log w (K,), means m (K, d) and covariances S (K, d, d).
    """
    if isinstance(prior, MixtureSameFamily):
        log_w, family = prior.mixture_distribution.logits.double(), prior.component_distribution
    else:
        log_w, family = torch.zeros(1, dtype=torch.float64), prior
    if isinstance(family, MultivariateNormal):
        mean, covariance = family.loc.double(), family.covariance_matrix.double()
    elif isinstance(family, Independent) and isinstance(family.base_dist, Normal):
        mean = family.base_dist.loc.double()
        covariance = torch.diag_embed(family.base_dist.scale.double() ** 2)
    else:
        return None
    d = mean.shape[-1]
    return log_w.cpu(), mean.reshape(-1, d).cpu(), covariance.reshape(-1, d, d).cpu()


def _closed_form(
    x: Tensor,
    n: int,
    log_w: Tensor,
    m: Tensor,
    s: Tensor,
    rng: np.random.Generator,
    variance: float = _VARIANCE,
) -> Tensor:
    eye = torch.eye(x.shape[0], dtype=torch.float64)
    log_evidence = MultivariateNormal(m, s + variance * eye).log_prob(x)
    weights = torch.softmax(log_w + log_evidence, dim=0)
    precision = torch.linalg.inv(s)
    covariance = torch.linalg.inv(precision + eye / variance)
    mean = (covariance @ (precision @ m[..., None] + x[:, None] / variance)).squeeze(-1)
    k = torch.from_numpy(rng.choice(len(weights), size=n, p=weights.numpy() / float(weights.sum())))
    noise = torch.from_numpy(rng.standard_normal((n, x.shape[0])))
    return mean[k] + (torch.linalg.cholesky(covariance)[k] @ noise[..., None]).squeeze(-1)
