"""An exact base for tests: theta ~ N(0, P), x = theta + N(0, c I), all in standardised units, noise of any kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from reprior.diffusion.denoiser import Base, Denoiser
from reprior.methods import Problem
from reprior.posterior import Posterior, Scales
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer
from reprior.target import make_change


class GaussianBase(Base):
    """E[theta_0 | z, x] in closed form."""

    def __init__(self, prior_cov: Tensor, c: float, noise: str = "full", s_min: float = 1e-3, s_max: float = 40.0):
        super().__init__()
        self.dim = self.x_dim = len(prior_cov)
        self.noise, self.s_min, self.s_max = noise, s_min, s_max  # pyright: ignore[reportAttributeAccessIssue]
        self.c = c
        self.unused = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        cov = torch.linalg.inv(torch.linalg.inv(prior_cov.double()) + torch.eye(self.dim).double() / c)
        self.cov = cov  # of theta given x

    def posterior_mean(self, x: Tensor) -> Tensor:
        return (x.double() / self.c) @ self.cov

    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        return _Bound(self, x)

    def config(self) -> dict:
        return {"network": "exact"}


class _Bound(Denoiser):
    def __init__(self, base: GaussianBase, x: Tensor):
        self.base, self.x = base, x
        self.dim, self.observations, self.noise = base.dim, len(x), base.noise
        self.s_min, self.s_max = base.s_min, base.s_max
        self.centre = base.posterior_mean(x)

    def select(self, k: int | list[int]) -> Denoiser:
        return _Bound(self.base, self.x[[k] if isinstance(k, int) else k])

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        cov = cov.double()
        gain = self.base.cov @ torch.linalg.inv(self.base.cov + cov)
        return (self.centre + torch.einsum("...ij,...j->...i", gain, z.double() - self.centre)).to(z.dtype)

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        s = torch.as_tensor(s).double()
        levels = s.expand(self.dim) if s.ndim == 0 else s.expand(*s.shape[:-1], self.dim)
        return self.mean_full(z, torch.diag_embed(levels**2))


def gaussian_posterior(
    dim: int = 3, c: float = 0.3, rho: float = 0.0, noise: str = "full", n: int = 4_000, seed: int = 0
) -> tuple[Posterior, MultivariateNormal]:
    """A posterior with the exact base, and its prior N(0, (1 - rho) I + rho 1 1')."""
    cov = (1 - rho) * torch.eye(dim) + rho * torch.ones(dim, dim)
    prior = MultivariateNormal(torch.zeros(dim), cov)
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(n, dim, generator=generator) @ torch.linalg.cholesky(cov).T
    x = theta + c**0.5 * torch.randn(n, dim, generator=generator)
    names = tuple(f"theta_{i + 1}" for i in range(dim))
    unit = Standardizer(torch.zeros(dim), torch.ones(dim))
    posterior = Posterior(
        GaussianBase(cov, c, noise), Scales(unit, unit), prior, Simulations(theta, x, prior, names), names
    )
    return posterior, prior


def problem_of(posterior: Posterior, target: Any, seed: int = 0, **more: Any) -> Problem:
    """Changing the prior of a posterior to a target: what a method is built for."""
    return Problem(posterior, make_change(posterior.prior, target, posterior.scales.theta, seed), seed, **more)


def exact_posterior(prior: MultivariateNormal, x: Tensor, c: float) -> MultivariateNormal:
    """The posterior of a Gaussian prior given one x, in closed form."""
    inverse = torch.linalg.inv(prior.covariance_matrix)
    cov = torch.linalg.inv(inverse + torch.eye(len(x)) / c)
    cov = (cov + cov.T) / 2
    return MultivariateNormal(cov @ (inverse @ prior.loc + x / c), cov)
