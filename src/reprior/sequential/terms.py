"""What each observation leaves behind: its exact log-density at some points, and how the terms add up.

After n observations the carried parameters theta_c have

    log r_n(theta_c) = sum_k [ log p(theta_c | x_k) - log p(theta_c) ]

A term holds log p(theta | x_k) of the base, exact up to a constant (`reprior.sequential.density`), at points of its own
posterior and of the posterior so far. A fit through the values (`reprior.sequential.surrogate`) makes it a function; the
fits of all terms, in one frame, add up to log r_n. Nuisance parameters nu are integrated out of each fit and of the prior:

    log p(theta_c | x) = log E_g [ p(theta_c, nu | x) / g(nu | theta_c) ],     g Gaussian, at fixed quasi-random nodes

over the prior's support.

In coordinates of the likelihood (`reprior.sequential.coordinates`) what is fitted is log p(theta | x_k) - log p(theta), at
the points where log p(theta | x_k) is within 15 of its largest value, and log p(theta) is added again.

At every later observation each term gets more points, from the posterior as it then is: what the fit missed there is
seen (`Check`) and mended, so that the error of the fit does not pile up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from reprior import priors
from reprior_bench import metrics
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.posterior import Posterior
from reprior.sequential.coordinates import CANONICAL
from reprior.sequential.density import RelativeDensity
from reprior.sequential.surrogate import CarriedRatio, Frame, choose, coordinates_of, fit

__all__ = ["Check", "Conditional", "Term", "Terms"]

NODES = 64  # of the integral over nuisance parameters
WIDEN = 1.5  # the variance of g against that of the draws it was fitted to
JITTER = 0.5
TRIES = 20  # draws of a nuisance value until one lies inside the prior's support
NEAR = 15.0  # how far below its largest value a log-density is fitted in coordinates of the likelihood
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
        ess: ESS/N of the weights exp(exact sum - fitted sum); draws that could not be compared have no weight.
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
        coordinates: what the fits are functions of, by name.
    """

    def __init__(
        self,
        posterior: Posterior,
        nuisance: tuple[int, ...],
        points: int,
        checks: int,
        terms: tuple[Term, ...] = (),
        coordinates: str = "theta",
    ):
        self.posterior, self.points, self.checks, self.coordinates = posterior, points, checks, coordinates
        self.terms = list(terms)
        self.nuisance = torch.tensor(nuisance, dtype=torch.long)
        self.carried = torch.tensor([i for i in range(posterior.dim) if i not in nuisance], dtype=torch.long)
        sobol = torch.quasirandom.SobolEngine(max(1, len(nuisance)), scramble=True, seed=0)
        uniform = sobol.draw(NODES, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        self.nodes = torch.erfinv(2 * uniform - 1) * 2**0.5
        self._prior = self._of_prior() if len(nuisance) else None
        self.columns = self._columns()

    def add(self, x: Tensor, samples: Tensor, generator: Generator) -> None:
        """Adds the term of an observation.

        Arguments:
            x: the observation, with shape (m,).
            samples: draws of the posterior given all observations up to this one, with shape (n, d), in the user's units.
            generator: the source of randomness.
        """
        draws = self.base_draws(x, 2 * self.points, generator)
        term = Term(x, draws.mean(0), torch.cov(draws.T).reshape(2 * draws.shape[1:]), draws[:0], draws[:0, 0])
        near = self._canonical(self.posterior.scales.theta.forward(samples).double())
        half = self.points // 2
        points = self._canonical(torch.cat([self._around(some, half, generator) for some in (draws, near)]))
        points = points[self._inside(points)]
        if len(points) == 0:
            raise InputError("no draw near the posterior lies inside the prior's support")
        self.terms.append(self._extend(term, points))

    def base_draws(self, x: Tensor, n: int, generator: Generator) -> Tensor:
        """Standardised draws of the base at x, with shape (n, d), in double precision."""
        seed = int(torch.randint(2**62, (), generator=generator))
        theta = self.posterior.sample((n,), x, seed=seed, sampler=Sampler(steps=20))
        return self._canonical(self.posterior.scales.theta.forward(theta).double())

    def _around(self, points: Tensor, n: int, generator: Generator) -> Tensor:
        """n points about some; in coordinates of the likelihood half of them as they are: jitter leaves a bent ridge."""
        plain = 0 if self.coordinates == "theta" else n // 2
        rows = torch.randperm(len(points), generator=generator)[:plain] if plain else slice(0)
        return torch.cat([points[rows], _jittered(points, n - plain, generator)])

    def _extend(self, term: Term, points: Tensor) -> Term:
        density = RelativeDensity(self.posterior.condition(term.x.unsqueeze(0)), term.mean, term.cov)
        values = density(points.float())
        return replace(term, points=torch.cat([term.points, points]), values=torch.cat([term.values, values]))

    def _log_prior(self, points: Tensor) -> Tensor:
        return priors.log_prob(self.posterior.prior, self._user(points)).double()

    def _inside(self, points: Tensor) -> Tensor:
        return torch.isfinite(self._log_prior(points))

    def _user(self, points: Tensor) -> Tensor:
        return self.posterior.scales.theta.inverse(points.float())

    def joint(self, term: Term, generator: Generator) -> Callable[[Tensor], Tensor]:
        """The fit of log p(theta | x_k) in all parameters, a function of theta in the user's units."""
        scale = self.posterior.scales.theta
        if self.coordinates == "theta":
            frame = Frame.over(term.points, generator)
            width, ridge = choose(frame, term.points, term.values, FALL, generator)
            coefficients = fit(frame, term.points, term.values, width, ridge, FALL)
            return CarriedRatio.of(scale, torch.arange(self.posterior.dim), frame, width, coefficients)
        term = _near(term)
        z, values = self._placed(term.points), term.values - self._log_prior(term.points)
        frame = Frame.over(z, generator)
        width, ridge = choose(frame, z, values, 0.0, generator)
        coefficients = fit(frame, z, values, width, ridge, 0.0)
        log_l = CarriedRatio.of(scale, torch.arange(z.shape[1]), frame, width, coefficients, self.coordinates)
        return lambda theta: log_l(theta) + priors.log_prob(self.posterior.prior, theta).to(theta.dtype)

    def ratio(self, generator: Generator, n: int | None = None) -> CarriedRatio:
        """log r_n: the sum of the first n terms, or of all, as one fit."""
        scale, name = self.posterior.scales.theta, self.coordinates
        terms = self.terms[:n] if name == "theta" else [_near(term) for term in self.terms[:n]]
        data = [self._carried(term, generator) for term in terms]
        frame = Frame.over(torch.cat([points for points, _ in data]), generator)
        chosen = [choose(frame, *one, 0.0, generator) for one in data]
        width, ridge = sorted(chosen)[len(chosen) // 2]  # one frame and width, so that coefficients add
        coefficients = torch.stack([fit(frame, *one, width, ridge, 0.0) for one in data]).sum(0)
        return CarriedRatio.of(scale, self.columns, frame, width, coefficients, name)

    def _placed(self, points: Tensor) -> Tensor:
        """The coordinates of standardised theta."""
        if self.coordinates == "theta":
            return points
        return coordinates_of(self._user(points), self.posterior.scales.theta, self.coordinates)

    def _columns(self) -> Tensor:
        """The coordinates that do not depend on nuisance parameters."""
        if self.coordinates == "theta":
            return self.carried
        here, there = (priors.sample(self.posterior.prior, 2, seed) for seed in (0, 1))
        there[:, self.carried] = here[:, self.carried]
        scale = self.posterior.scales.theta
        one, other = (coordinates_of(theta, scale, self.coordinates) for theta in (here, there))
        free = (one == other).all(0)
        there = priors.sample(self.posterior.prior, 2, 1)
        there[:, self.nuisance] = here[:, self.nuisance]
        mixed = ~free & (one != coordinates_of(there, scale, self.coordinates)).any(0)
        if bool(mixed.any()):
            left = ", ".join(self.posterior.parameters[i] for i in self.nuisance)
            raise InputError(
                f"with {left} as nuisance, coordinates={self.coordinates!r} would lose what a coordinate tells of the carried "
                "parameters, as it depends on both; carry all that it depends on, or use coordinates='theta'"
            )
        return free.nonzero().squeeze(-1)

    def _carried(self, term: Term, generator: Generator) -> tuple[Tensor, Tensor]:
        """The carried coordinates of the term's points, with shape (n, c), and log p(theta_c | x_k) - log p(theta_c) there."""
        theta_c, placed = term.points[:, self.carried], self._placed(term.points)[:, self.columns]
        if self._prior is None:
            return placed, term.values - self._log_prior(term.points)
        fitted = self.joint(term, generator)

        def log_f(z: Tensor) -> Tensor:  # the fit knows no bounds: nothing lies outside the prior's support
            return fitted(self._user(z)).double().masked_fill(~self._inside(z), -torch.inf)

        values = self._integrate(log_f, self._conditional(term), theta_c)
        values = values - self._log_marginal(theta_c)
        known = torch.isfinite(values)  # elsewhere no node has mass
        if not bool(known.any()):
            raise InputError("no nuisance value near the posterior lies inside the prior's support")
        return placed[known], values[known]

    def _conditional(self, term: Term) -> Conditional:
        return Conditional.of(term.mean, term.cov, self.carried, self.nuisance)

    def _of_prior(self) -> Conditional:
        theta = priors.sample(self.posterior.prior, 20_000, 0)
        z = self.posterior.scales.theta.forward(theta).double()
        return Conditional.of(z.mean(0), torch.cov(z.T), self.carried, self.nuisance)

    def _log_marginal(self, theta_c: Tensor) -> Tensor:
        """log p(theta_c), up to a constant, with shape (n,): exact where nuisance parameters are independent parts."""
        assert self._prior is not None
        prior = self.posterior.prior
        if isinstance(prior, priors.Product):
            blocks = torch.arange(self.posterior.dim).split(prior.dims)
            kept = [torch.isin(block, self.carried) for block in blocks]
            if all(bool(k.all()) or not bool(k.any()) for k in kept):
                theta = self._user(self._fill(theta_c, theta_c.new_zeros(len(theta_c), len(self.nuisance))))
                parts = zip(prior.parts, blocks, kept, strict=True)
                values = [priors.log_prob(part, theta[:, block]) for part, block, k in parts if bool(k.all())]
                return torch.stack(values).sum(0).double()
        return self._integrate(self._log_prior, self._prior, theta_c)

    def _integrate(self, log_f: Callable[[Tensor], Tensor], g: Conditional, theta_c: Tensor) -> Tensor:
        """log of the integral of f(theta_c, nu) over nu, up to a constant, with shape (n,)."""
        z = self._fill(theta_c.unsqueeze(0).expand(NODES, -1, -1), g.at(theta_c, self.nodes.unsqueeze(1)))
        log_g = -(self.nodes**2).sum(-1, keepdim=True) / 2
        return torch.logsumexp(log_f(z) - log_g, 0)

    def _fill(self, theta_c: Tensor, nu: Tensor) -> Tensor:
        z = theta_c.new_empty(*theta_c.shape[:-1], self.posterior.dim)
        z[..., self.carried], z[..., self.nuisance] = theta_c, nu
        return z

    def check(self, samples: Tensor, generator: Generator, log_r: CarriedRatio | None = None) -> Check:
        """Compares fits and exact values at draws of the posterior, and gives every term these points.

        Arguments:
            samples: draws of the posterior so far, with shape (n, d), in the user's units.
            generator: the source of randomness.
            log_r: the fitted sum of all terms but the last, under which they were drawn. Without nuisance parameters it is
                what is compared; with them it is the fit of each term, before they are integrated out.
        """
        rows = torch.randperm(len(samples), generator=generator)[: self.checks]
        points = self._canonical(self.posterior.scales.theta.forward(samples[rows]).double())
        total = torch.zeros(len(points), dtype=torch.float64)
        compared = torch.ones(len(points), dtype=torch.bool)
        summed = log_r is not None and not len(self.nuisance)
        if log_r is not None and summed:
            total -= log_r(self._user(points)).double()
        for k, term in enumerate(self.terms):
            last = k + 1 == len(self.terms)
            here = points if last or not len(self.nuisance) else self._earlier(term, points[:, self.carried], generator)
            inside = self._inside(here)
            compared &= inside
            if bool(inside.any()):
                known = here[inside]
                told = (
                    self._log_prior(known)  # log r holds the term itself
                    if summed and not last
                    else self.joint(term, generator)(self._user(known)).double()
                )
                self.terms[k] = self._extend(term, known)
                total[inside] += self.terms[k].values[len(term.values) :] - told
        left = total[compared]
        if len(left) < 2:
            return Check(math.inf, 0.0)
        return Check(float(left.std()), metrics.ess(left) * len(left) / len(points))

    def _canonical(self, points: Tensor) -> Tensor:
        """Standardised theta with the same coordinates as the points, where the base is asked."""
        if self.coordinates not in CANONICAL:
            return points
        return self.posterior.scales.theta.forward(CANONICAL[self.coordinates](self._user(points))).double()

    def _earlier(self, term: Term, theta_c: Tensor, generator: Generator) -> Tensor:
        """theta_c with nuisance values of an earlier observation, inside the prior's support where some are found."""
        z = theta_c.new_full((len(theta_c), self.posterior.dim), torch.nan)
        inside = torch.zeros(len(theta_c), dtype=torch.bool)
        for _ in range(TRIES):
            noise = torch.randn(len(theta_c), len(self.nuisance), generator=generator, dtype=torch.float64)
            new = self._fill(theta_c, self._conditional(term).at(theta_c, noise / WIDEN**0.5))
            z = torch.where(inside.unsqueeze(-1), z, new)
            inside = self._inside(z)
            if bool(inside.all()):
                break
        return z


def _near(term: Term) -> Term:
    """The term with the points of its larger values alone."""
    keep = term.values > term.values.max() - NEAR
    return replace(term, points=term.points[keep], values=term.values[keep])


def _jittered(points: Tensor, n: int, generator: Generator) -> Tensor:
    """n of the points, moved along differences of others: the same shape, 1.5 times the variance."""
    a, b, c = (torch.randint(len(points), (n,), generator=generator) for _ in range(3))
    return points[a] + JITTER * (points[b] - points[c])
