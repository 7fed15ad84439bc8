"""Exact guidance for a linear-Gaussian likelihood x = theta + N(0, v I) and Gaussian (mixture) priors.

Then E[theta_0 | z, x] is known under p and under q, and the exact guidance is their difference, added to the base's
denoised mean. It shows what a base and a sampler reach when the guidance has no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch import distributions as td

from reprior.diffusion.denoiser import Denoiser, Wrapped
from reprior.errors import InputError, RefusedError
from reprior.methods import Method, Problem

__all__ = ["Analytic", "AnalyticSettings", "gaussian_mean"]


@dataclass(frozen=True)
class AnalyticSettings:
    """Settings of analytic guidance.

    Attributes:
        variance: the likelihood's variance: x = theta + N(0, variance I).
    """

    variance: float = 0.1

    def __post_init__(self) -> None:
        if not self.variance > 0:
            raise InputError(f"variance must be positive; got {self.variance}")


def mixture_of(prior: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Log weights (c,), means (c, d) and covariances (c, d, d) of a Gaussian or Gaussian-mixture prior, in float64."""
    if isinstance(prior, td.MixtureSameFamily):
        _, means, covs = mixture_of(prior.component_distribution)
        return torch.log_softmax(prior.mixture_distribution.logits.double(), -1), means, covs
    if isinstance(prior, td.MultivariateNormal):
        d = prior.event_shape[0]
        root = prior.scale_tril.double().reshape(-1, d, d)  # what a file holds: the same numbers after loading
        return torch.zeros(1).double(), prior.loc.double().reshape(-1, d), root @ root.transpose(1, 2)
    if isinstance(prior, td.Independent) and isinstance(prior.base_dist, td.Normal):
        d = prior.event_shape[0]
        covs = torch.diag_embed(prior.base_dist.variance.double().reshape(-1, d))
        return torch.zeros(1).double(), prior.base_dist.loc.double().reshape(-1, d), covs
    raise RefusedError(f"analytic needs Gaussian or Gaussian-mixture priors; got {type(prior).__name__}")


def gaussian_mean(prior: Any, data: Tensor, precision: Tensor) -> Tensor:
    """E[theta | data] for data = theta + N(0, precision^-1) and a Gaussian (mixture) prior.

    Arguments:
        data: with shape (*, d), in float64.
        precision: with shape (d, d).
    """
    log_w, means, covs = mixture_of(prior)
    covs = covs.expand(len(means), -1, -1)
    marginal = td.MultivariateNormal(means, covs + torch.linalg.inv(precision))
    weight = torch.softmax(log_w + marginal.log_prob(data.unsqueeze(-2)), -1)
    inverse = torch.linalg.inv(covs)
    post = torch.linalg.inv(inverse + precision)
    point = torch.einsum("cij,cj->ci", inverse, means) + (data @ precision).unsqueeze(-2)
    each = torch.einsum("cij,...cj->...ci", post, point)
    return (weight.unsqueeze(-1) * each).sum(-2)


class Analytic(Method):
    """Exact guidance for x = theta + N(0, variance I), as in "Guidance for Prior Change via Density Ratio Estimation" (Zang,
    Liu, Lin).

    Arguments:
        problem: the base posterior and the change of prior.
        settings: the likelihood's variance.
    """

    name = "analytic"
    summary = "exact guidance, for a linear-Gaussian likelihood and Gaussian priors"
    Settings = AnalyticSettings
    settings: AnalyticSettings

    def __init__(self, problem: Problem, settings: AnalyticSettings | None = None):
        super().__init__(problem, settings or AnalyticSettings())
        if problem.posterior.x_dim != problem.posterior.dim:
            raise RefusedError("analytic is for x = theta + Gaussian noise: x and theta must have the same size")
        if self.change.target is None:
            raise RefusedError("analytic needs the target prior as a distribution")
        mixture_of(self.change.prior)
        mixture_of(self.change.target)

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        x = self.problem.posterior.scales.x.inverse(denoiser.x.cpu()).double()
        return _Guided(denoiser, self, x)


class _Guided(Wrapped):
    def __init__(self, inner: Denoiser, method: Analytic, x: Tensor):
        super().__init__(inner)
        self.method, self.x_user = method, x

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        change, scale = self.method.change, self.method.problem.posterior.scales.theta
        noisy = scale.inverse(z.cpu()).double()  # theta_0 + scale s eps, in the user's units
        eye = torch.eye(z.shape[-1], dtype=torch.float64)
        own = torch.diag(1 / (scale.scale.double() * float(s)) ** 2)
        seen = eye / self.method.settings.variance
        total = own + seen
        data = (noisy @ own + self.x_user @ seen) @ torch.linalg.inv(total)
        shift = gaussian_mean(change.target, data, total) - gaussian_mean(change.prior, data, total)
        return self.inner.mean(z, s) + (shift / scale.scale).to(z)
