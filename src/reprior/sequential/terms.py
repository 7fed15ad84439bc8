"""What each observation leaves behind: its exact log-density at some points, and how the terms add up.

After n observations the carried parameters theta_c have

    log r_n(theta_c) = sum_k [ log p(theta_c | x_k) - log p(theta_c) ]

A term holds log p(theta | x_k) of the base, exact up to a constant (`reprior.sequential.density`), at points of its own
posterior and of the posterior so far. A fit through the values (`reprior.sequential.surrogate`) makes it a function; the
fits of all terms, in one frame, add up to log r_n. Nuisance parameters nu are integrated out of each fit and of the prior:

    log p(theta_c | x) = log E_g [ p(theta_c, nu | x) / g(nu | theta_c) ],     g Gaussian, at fixed quasi-random nodes

At every later observation each term gets more points, from the posterior as it then is: what the fit missed there is
seen (`Check`) and mended, so that the error of the fit does not pile up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from reprior import metrics, priors
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.posterior import Posterior
from reprior.sequential.density import RelativeDensity
from reprior.sequential.surrogate import CarriedRatio, Frame, choose, fit

__all__ = ["Check", "Conditional", "Term", "Terms"]

NODES = 64  # of the integral over nuisance parameters
WIDEN = 1.5  # the variance of g against that of the draws it was fitted to
JITTER = 0.5
FALL = 0.1  # the least curvature of a fitted density, in whitened units, where a Gaussian has 1


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
        left = cov[nuisance][:, nuisance] - cov[nuisance][:, carried] @ slope
        eye = torch.eye(len(nuisance), dtype=left.dtype)
        chol = torch.linalg.cholesky(WIDEN * (left + left.T) / 2 + 1e-12 * eye)
        return cls(mean[nuisance] - mean[carried] @ slope, slope, chol)

    def at(self, theta_c: Tensor, noise: Tensor) -> Tensor:
        """nu for standard normal noise, with shape (*, v)."""
        return self.offset + theta_c @ self.slope + noise @ self.chol.T


@dataclass(frozen=True)
class Term:
    """One observation.

    Attributes:
        x: the observation, with shape (m,).
        mean: the mean of base draws there, standardised, with shape (d,).
        cov: their covariance, with shape (d, d).
        points: standardised theta, with shape (n, d), in double precision.
        values: log p(theta | x) there, up to a constant, with shape (n,).
    """

    x: Tensor
    mean: Tensor
    cov: Tensor
    points: Tensor
    values: Tensor


@dataclass(frozen=True)
class Check:
    """How well the fits agree with the exact sum at draws of the posterior.

    Attributes:
        error: the standard deviation of (exact sum - fitted sum).
        ess: ESS/N of the weights exp(exact sum - fitted sum).
    """

    error: float
    ess: float


class Terms:
    """The terms of all observations so far.

    Arguments:
        posterior: the base posterior.
        nuisance: the indices of parameters that are not carried.
        points: the number of points of a new term.
        checks: the number of points at which every term is checked and mended at each observation.
        terms: terms made before.
    """

    def __init__(
        self, posterior: Posterior, nuisance: tuple[int, ...], points: int, checks: int, terms: tuple[Term, ...] = ()
    ):
        self.posterior, self.points, self.checks = posterior, points, checks
        self.terms = list(terms)
        self.nuisance = torch.tensor(nuisance, dtype=torch.long)
        self.carried = torch.tensor([i for i in range(posterior.dim) if i not in nuisance], dtype=torch.long)
        sobol = torch.quasirandom.SobolEngine(max(1, len(nuisance)), scramble=True, seed=0)
        uniform = sobol.draw(NODES, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        self.nodes = torch.erfinv(2 * uniform - 1) * 2**0.5
        self._prior = self._of_prior() if len(nuisance) else None

    def add(self, x: Tensor, samples: Tensor, generator: Generator) -> None:
        """Adds the term of an observation.

        Arguments:
            x: the observation, with shape (m,).
            samples: draws of the posterior given all observations up to this one, with shape (n, d), in the user's units.
            generator: the source of randomness.
        """
        draws = self.base_draws(x, 2 * self.points, generator)
        term = Term(x, draws.mean(0), torch.cov(draws.T).reshape(2 * draws.shape[1:]), draws[:0], draws[:0, 0])
        near = self.posterior.scales.theta.forward(samples).double()
        half = self.points // 2
        wide = [_jittered(some, half, generator) for some in (draws, near)]
        self.terms.append(self._extend(term, torch.cat(wide)))

    def base_draws(self, x: Tensor, n: int, generator: Generator) -> Tensor:
        """Standardised draws of the base at x, with shape (n, d), in double precision."""
        seed = int(torch.randint(2**62, (), generator=generator))
        theta = self.posterior.sample((n,), x, seed=seed, sampler=Sampler(steps=20))
        return self.posterior.scales.theta.forward(theta).double()

    def _extend(self, term: Term, points: Tensor) -> Term:
        inside = torch.isfinite(priors.log_prob(self.posterior.prior, self._user(points)))
        points = points[inside]
        if len(points) == 0:
            raise InputError("no draw near the posterior lies inside the prior's support")
        density = RelativeDensity(self.posterior.condition(term.x.unsqueeze(0)), term.mean, term.cov)
        values = density(points.float())
        return replace(term, points=torch.cat([term.points, points]), values=torch.cat([term.values, values]))

    def _user(self, points: Tensor) -> Tensor:
        return self.posterior.scales.theta.inverse(points.float())

    def joint(self, term: Term, generator: Generator) -> CarriedRatio:
        """The fit of log p(theta | x_k) in all parameters."""
        frame = Frame.over(term.points, generator)
        width, ridge = choose(frame, term.points, term.values, FALL, generator)
        coefficients = fit(frame, term.points, term.values, width, ridge, FALL)
        every = torch.arange(self.posterior.dim)
        return CarriedRatio.of(self.posterior.scales.theta, every, frame, width, coefficients)

    def ratio(self, generator: Generator) -> CarriedRatio:
        """log r_n: the sum of the terms, as one fit."""
        data = [(t.points[:, self.carried], self._carried_values(t, generator)) for t in self.terms]
        frame = Frame.over(torch.cat([points for points, _ in data]), generator)
        chosen = [choose(frame, *one, 0.0, generator) for one in data]
        width, ridge = sorted(chosen)[len(chosen) // 2]  # one frame and width, so that coefficients add
        coefficients = torch.stack([fit(frame, *one, width, ridge, 0.0) for one in data]).sum(0)
        return CarriedRatio.of(self.posterior.scales.theta, self.carried, frame, width, coefficients)

    def _carried_values(self, term: Term, generator: Generator) -> Tensor:
        """log p(theta_c | x_k) - log p(theta_c) at the term's points."""
        if self._prior is None:
            return term.values - priors.log_prob(self.posterior.prior, self._user(term.points)).double()
        theta_c = term.points[:, self.carried]
        fitted = self.joint(term, generator)
        mine = self._integrate(lambda z: fitted(self._user(z)).double(), self._conditional(term), theta_c)
        prior = self._integrate(
            lambda z: priors.log_prob(self.posterior.prior, self._user(z)).double(), self._prior, theta_c
        )
        return mine - prior

    def _conditional(self, term: Term) -> Conditional:
        return Conditional.of(term.mean, term.cov, self.carried, self.nuisance)

    def _of_prior(self) -> Conditional:
        theta = priors.sample(self.posterior.prior, 20_000, 0)
        z = self.posterior.scales.theta.forward(theta).double()
        return Conditional.of(z.mean(0), torch.cov(z.T), self.carried, self.nuisance)

    def _integrate(self, log_f: Callable[[Tensor], Tensor], g: Conditional, theta_c: Tensor) -> Tensor:
        """log of the integral of f(theta_c, nu) over nu, up to a constant, with shape (n,)."""
        z = self._fill(theta_c.unsqueeze(0).expand(NODES, -1, -1), g.at(theta_c, self.nodes.unsqueeze(1)))
        log_g = -(self.nodes**2).sum(-1, keepdim=True) / 2
        return torch.logsumexp(log_f(z) - log_g, 0)

    def _fill(self, theta_c: Tensor, nu: Tensor) -> Tensor:
        z = theta_c.new_empty(*theta_c.shape[:-1], self.posterior.dim)
        z[..., self.carried], z[..., self.nuisance] = theta_c, nu
        return z

    def check(self, samples: Tensor, generator: Generator) -> Check:
        """Compares fits and exact values at draws of the posterior, and gives every term these points.

        Arguments:
            samples: draws of the posterior so far, with shape (n, d), in the user's units.
            generator: the source of randomness.
        """
        rows = torch.randperm(len(samples), generator=generator)[: self.checks]
        points = self.posterior.scales.theta.forward(samples[rows]).double()
        total = torch.zeros(len(points), dtype=torch.float64)
        for k, term in enumerate(self.terms):
            here = points
            if len(self.nuisance) and k + 1 < len(self.terms):  # the nuisance of an earlier observation is another one
                noise = torch.randn(len(points), len(self.nuisance), generator=generator, dtype=torch.float64)
                nu = self._conditional(term).at(points[:, self.carried], noise / WIDEN**0.5)
                here = self._fill(points[:, self.carried], nu)
            fitted = self.joint(term, generator)
            self.terms[k] = self._extend(term, here)
            new = self.terms[k].points[len(term.points) :], self.terms[k].values[len(term.points) :]
            if len(new[0]) == len(points):
                total += new[1] - fitted(self._user(new[0])).double()
        return Check(float(total.std()), metrics.ess(total))


def _jittered(points: Tensor, n: int, generator: Generator) -> Tensor:
    """n of the points, moved along differences of others: the same shape, 1.5 times the variance."""
    a, b, c = (torch.randint(len(points), (n,), generator=generator) for _ in range(3))
    return points[a] + JITTER * (points[b] - points[c])
