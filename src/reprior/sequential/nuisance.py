"""Nuisance parameters: integrated out of a fit and of the prior, over the prior's support.

With theta = (theta_c, nu), nu having a new value in each observation,

    log f(theta_c) = log E_g [ f(theta_c, nu) / g(nu | theta_c) ],    g Gaussian, at fixed quasi-random nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from reprior import priors
from reprior.errors import InputError
from reprior.sequential.coordinates import Space, coordinates_of

__all__ = ["Conditional", "Nuisance"]

NODES = 64  # of the integral: one more or less of them changes it by less than the error of a fit
WIDEN = 1.5  # the variance of g against that of the draws it was fitted to: g must be the wider one
TRIES = 20  # draws of a nuisance value until one lies inside the prior's support


@dataclass(frozen=True)
class Conditional:
    """A Gaussian g(nu | theta_c) = N(offset + theta_c slope, chol chol').

    Attributes:
        offset: with shape (v,).
        slope: with shape (c, v).
        chol: with shape (v, v).
    """

    offset: Tensor
    slope: Tensor
    chol: Tensor

    @classmethod
    def of(cls, mean: Tensor, cov: Tensor, carried: Tensor, nuisance: Tensor) -> Conditional:
        """The conditional of a Gaussian over all parameters, widened."""
        slope = torch.linalg.solve(cov[carried][:, carried], cov[carried][:, nuisance])
        residual = cov[nuisance][:, nuisance] - cov[nuisance][:, carried] @ slope
        eye = torch.eye(len(nuisance), dtype=residual.dtype)
        chol = torch.linalg.cholesky(WIDEN * (residual + residual.T) / 2 + 1e-12 * eye)
        return cls(mean[nuisance] - mean[carried] @ slope, slope, chol)

    def at(self, theta_c: Tensor, noise: Tensor) -> Tensor:
        """nu for standard normal noise, with shape (*, v)."""
        return self.offset + theta_c @ self.slope + noise @ self.chol.T


class Nuisance:
    """Which parameters are carried from one observation to the next, and the integral over the others.

    Arguments:
        space: the space of theta.
        indices: the indices of parameters that are not carried.
    """

    def __init__(self, space: Space, indices: tuple[int, ...]):
        self.space = space
        self.nuisance = torch.tensor(indices, dtype=torch.long)
        self.carried = torch.tensor([i for i in range(space.dim) if i not in indices], dtype=torch.long)
        self.columns = self._columns()
        sobol = torch.quasirandom.SobolEngine(max(1, len(indices)), scramble=True, seed=0)
        uniform = sobol.draw(NODES, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        self.nodes = torch.erfinv(2 * uniform - 1) * 2**0.5
        self._of_prior = self._prior_conditional() if len(indices) else None

    def __len__(self) -> int:
        return len(self.nuisance)

    def conditional(self, mean: Tensor, cov: Tensor) -> Conditional:
        """g for a posterior with that mean, with shape (d,), and covariance, with shape (d, d)."""
        return Conditional.of(mean, cov, self.carried, self.nuisance)

    def integrate(self, log_f: Callable[[Tensor], Tensor], g: Conditional, theta_c: Tensor) -> Tensor:
        """log of the integral of f(theta_c, nu) over nu, up to a constant, with shape (n,).

        Arguments:
            log_f: log f of standardised theta, (*, d) -> (*).
            g: where f is, given theta_c.
            theta_c: the carried entries, with shape (n, c).
        """
        z = self._fill(theta_c.unsqueeze(0).expand(NODES, -1, -1), g.at(theta_c, self.nodes.unsqueeze(1)))
        log_g = -(self.nodes**2).sum(-1, keepdim=True) / 2
        return torch.logsumexp(log_f(z) - log_g, 0)

    def log_prior(self, theta_c: Tensor) -> Tensor:
        """log p(theta_c), up to a constant, with shape (n,): exact where nuisance parameters are independent parts."""
        assert self._of_prior is not None
        prior, space = self.space.prior, self.space
        if isinstance(prior, priors.Product):
            blocks = torch.arange(space.dim).split(prior.dims)
            kept = [torch.isin(block, self.carried) for block in blocks]
            if all(bool(k.all()) or not bool(k.any()) for k in kept):
                theta = space.user(self._fill(theta_c, theta_c.new_zeros(len(theta_c), len(self))))
                parts = zip(prior.parts, blocks, kept, strict=True)
                values = [priors.log_prob(part, theta[:, block]) for part, block, k in parts if bool(k.all())]
                return torch.stack(values).sum(0).double()
        return self.integrate(space.log_prior, self._of_prior, theta_c)

    def draw(self, g: Conditional, theta_c: Tensor, generator: Generator) -> Tensor:
        """theta_c, with shape (n, c), with nuisance values of g, inside the prior's support where some are found: (n, d)."""
        z = theta_c.new_full((len(theta_c), self.space.dim), torch.nan)
        inside = torch.zeros(len(theta_c), dtype=torch.bool)
        for _ in range(TRIES):
            noise = torch.randn(len(theta_c), len(self), generator=generator, dtype=torch.float64)
            new = self._fill(theta_c, g.at(theta_c, noise / WIDEN**0.5))
            z = torch.where(inside.unsqueeze(-1), z, new)
            inside = self.space.inside(z)
            if bool(inside.all()):
                break
        return z

    def _fill(self, theta_c: Tensor, nu: Tensor) -> Tensor:
        z = theta_c.new_empty(*theta_c.shape[:-1], self.space.dim)
        z[..., self.carried], z[..., self.nuisance] = theta_c, nu
        return z

    def _prior_conditional(self) -> Conditional:
        theta = priors.sample(self.space.prior, 20_000, 0)
        z = self.space.scale.forward(theta).double()
        return self.conditional(z.mean(0), torch.cov(z.T))

    def _columns(self) -> Tensor:
        """The coordinates that do not depend on nuisance parameters."""
        space = self.space
        if space.coordinates is None:
            return self.carried
        here, other = (priors.sample(space.prior, 2, seed) for seed in (0, 1))
        same_carried, same_nuisance = other.clone(), other.clone()
        same_carried[:, self.carried] = here[:, self.carried]
        same_nuisance[:, self.nuisance] = here[:, self.nuisance]
        u, of_nuisance, of_carried = (
            coordinates_of(theta, space.scale, space.coordinates) for theta in (here, same_carried, same_nuisance)
        )
        free = (u == of_nuisance).all(0)
        mixed = ~free & (u != of_carried).any(0)
        if bool(mixed.any()):
            names = ", ".join(space.parameters[i] for i in self.nuisance)
            raise InputError(
                f"with {names} as nuisance, coordinates {space.coordinates.name!r} would lose what a coordinate tells of the "
                "carried parameters, as it depends on both; carry all that it depends on, or use no coordinates"
            )
        return free.nonzero().squeeze(-1)
