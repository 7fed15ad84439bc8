"""What each observation is kept as: its exact log-density at some points; and how these terms add up.

After n observations the carried parameters theta_c have

    log r_n(theta_c) = sum_k [ log p(theta_c | x_k) - log p(theta_c) ]

A term holds log p(theta | x_k) of the base, exact up to a constant (`reprior.sequential.density`), at points of its own
posterior and of the posterior so far. A fit through the values (`reprior.sequential.surrogate`) makes it a function; the
fits of all terms, in one frame, add up to log r_n. Nuisance parameters are integrated out of each fit and of the prior
(`reprior.sequential.nuisance`).

With coordinates (`reprior.sequential.coordinates`) what is fitted is log p(theta | x_k) - log p(theta), at the points where
log p(theta | x_k) is within 15 nats of its largest value, and log p(theta) is added again.

At every later observation each term gets more points, from the posterior as it then is: the error of the fit there is seen
(`Check`) and the next fit includes them, so that errors of the fits do not add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from reprior import priors
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.posterior import Posterior
from reprior.sequential.coordinates import Coordinates, Space
from reprior.sequential.density import RelativeDensity
from reprior.sequential.nuisance import Conditional, Nuisance
from reprior.sequential.surrogate import CarriedRatio, Frame, choose, fit
from reprior.weights import relative_ess

__all__ = ["Check", "Term", "Terms"]

JITTER = 0.5  # of the difference of two draws: gives the points 1.5 times the variance of the draws
NEAR = 15.0  # nats below the largest value, to where a log-density is fitted in coordinates
LOWEST_CURVATURE = 0.1  # of a fitted density, in whitened units, where a Gaussian has 1: it must fall on all sides


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

    def near(self) -> Term:
        """The term with the points of its larger values alone."""
        keep = self.values > self.values.max() - NEAR
        return replace(self, points=self.points[keep], values=self.values[keep])


@dataclass(frozen=True)
class Check:
    """How well the fits agree with the exact sum at draws of the posterior.

    Attributes:
        error: the standard deviation of (exact sum - fitted sum), in nats.
        ess: relative ESS of the weights exp(exact sum - fitted sum); draws that could not be compared have no weight.
    """

    error: float
    ess: float


class Terms:
    """The terms of all observations so far.

    Arguments:
        posterior: the base posterior.
        nuisance: the indices of parameters that are not carried.
        points: the number of points of a new term.
        checks: the number of points at which every term is checked and fitted again at each observation.
        terms: terms made before.
        coordinates: what the fits are functions of; standardised theta if None.
    """

    def __init__(
        self,
        posterior: Posterior,
        nuisance: tuple[int, ...],
        points: int,
        checks: int,
        terms: tuple[Term, ...] = (),
        coordinates: Coordinates | None = None,
    ):
        self.posterior, self.points, self.checks, self.terms = posterior, points, checks, list(terms)
        self.space = Space(posterior, coordinates)
        self.nuisance = Nuisance(self.space, nuisance)

    def add(self, x: Tensor, samples: Tensor, generator: Generator) -> None:
        """Adds the term of an observation.

        Arguments:
            x: the observation, with shape (m,).
            samples: draws of the posterior given all observations up to this one, with shape (n, d), in the user's units.
            generator: the source of randomness.
        """
        seed = int(torch.randint(2**62, (), generator=generator))
        draws = self.space.standard(
            self.posterior.sample((2 * self.points,), x, seed=seed, sampler=Sampler(steps=20))
        )  # a rough draw is enough: the points are moved, and their density is exact
        term = Term(x, draws.mean(0), torch.cov(draws.T).reshape(2 * draws.shape[1:]), draws[:0], draws[:0, 0])
        near = self.space.standard(samples)
        points = torch.cat([self._around(some, self.points // 2, generator) for some in (draws, near)])
        points = self.space.canonical(points)
        points = points[self.space.inside(points)]
        if len(points) == 0:
            raise InputError("no draw near the posterior lies inside the prior's support")
        self.terms.append(self._extend(term, points))

    def _around(self, points: Tensor, n: int, generator: Generator) -> Tensor:
        """n points about some; with coordinates half of them as they are, because jitter leaves a bent ridge."""
        plain = 0 if self.space.coordinates is None else n // 2
        rows = torch.randperm(len(points), generator=generator)[:plain] if plain else slice(0)
        return torch.cat([points[rows], _jittered(points, n - plain, generator)])

    def _extend(self, term: Term, points: Tensor) -> Term:
        """The term with the values at more points."""
        density = RelativeDensity(self.posterior.condition(term.x.unsqueeze(0)), term.mean, term.cov)
        values = density(points.float())
        return replace(term, points=torch.cat([term.points, points]), values=torch.cat([term.values, values]))

    def joint(self, term: Term, generator: Generator) -> Callable[[Tensor], Tensor]:
        """The fit of log p(theta | x_k) in all parameters, a function of theta in the user's units."""
        space, coordinates = self.space, self.space.coordinates
        if coordinates is None:
            z, values, lowest = term.points, term.values, LOWEST_CURVATURE
        else:
            term = term.near()
            z, values, lowest = space.place(term.points), term.values - space.log_prior(term.points), 0.0
        frame = Frame.over(z, generator)
        width, ridge = choose(frame, z, values, lowest, generator)
        coefficients = fit(frame, z, values, width, ridge, lowest)
        fitted = CarriedRatio.of(space.scale, torch.arange(z.shape[1]), frame, width, coefficients, coordinates)
        if coordinates is None:
            return fitted
        return lambda theta: fitted(theta) + priors.log_prob(space.prior, theta).to(theta.dtype)

    def ratio(self, generator: Generator, n: int | None = None) -> CarriedRatio:
        """log r_n: the sum of the first n terms, or of all, as one fit."""
        coordinates = self.space.coordinates
        terms = self.terms[:n] if coordinates is None else [term.near() for term in self.terms[:n]]
        data = [self._carried(term, generator) for term in terms]
        frame = Frame.over(torch.cat([points for points, _ in data]), generator)
        chosen = [choose(frame, *one, 0.0, generator) for one in data]
        width, ridge = sorted(chosen)[len(chosen) // 2]  # one frame and width, so that coefficients add
        coefficients = torch.stack([fit(frame, *one, width, ridge, 0.0) for one in data]).sum(0)
        return CarriedRatio.of(self.space.scale, self.nuisance.columns, frame, width, coefficients, coordinates)

    def _conditional(self, term: Term) -> Conditional:
        return self.nuisance.conditional(term.mean, term.cov)

    def _carried(self, term: Term, generator: Generator) -> tuple[Tensor, Tensor]:
        """The carried coordinates of the term's points, with shape (n, c), and log p(theta_c | x_k) - log p(theta_c) there."""
        space, nuisance = self.space, self.nuisance
        theta_c, placed = term.points[:, nuisance.carried], space.place(term.points)[:, nuisance.columns]
        if not len(nuisance):
            return placed, term.values - space.log_prior(term.points)
        fitted = self.joint(term, generator)

        def log_f(z: Tensor) -> Tensor:  # the fit knows no bounds: nothing lies outside the prior's support
            return fitted(space.user(z)).double().masked_fill(~space.inside(z), -torch.inf)

        values = nuisance.integrate(log_f, self._conditional(term), theta_c) - nuisance.log_prior(theta_c)
        known = torch.isfinite(values)  # elsewhere no node has mass
        if not bool(known.any()):
            raise InputError("no nuisance value near the posterior lies inside the prior's support")
        return placed[known], values[known]

    def check(self, samples: Tensor, generator: Generator, log_r: CarriedRatio | None = None) -> Check:
        """Compares fits and exact values at draws of the posterior, and gives every term these points.

        Arguments:
            samples: draws of the posterior so far, with shape (n, d), in the user's units.
            generator: the source of randomness.
            log_r: the fitted sum of all terms but the last, under which they were drawn. Without nuisance parameters it is
                what is compared; with them it is the fit of each term, before they are integrated out.
        """
        space, carried = self.space, self.nuisance.carried
        rows = torch.randperm(len(samples), generator=generator)[: self.checks]
        points = space.standard(samples[rows])
        gap = torch.zeros(len(points), dtype=torch.float64)  # exact sum - fitted sum
        compared = torch.ones(len(points), dtype=torch.bool)
        summed = log_r is not None and not len(self.nuisance)
        if log_r is not None and summed:
            gap -= log_r(space.user(points)).double()
        for k, term in enumerate(self.terms):
            last = k + 1 == len(self.terms)
            here = points
            if len(self.nuisance) and not last:  # nuisance values of that observation
                here = self.nuisance.draw(self._conditional(term), points[:, carried], generator)
            inside = space.inside(here)
            compared &= inside
            if bool(inside.any()):
                known = here[inside]
                if summed and not last:  # log r holds the fit of this term, less the log prior
                    fitted = space.log_prior(known)
                else:
                    fitted = self.joint(term, generator)(space.user(known)).double()
                self.terms[k] = self._extend(term, known)
                gap[inside] += self.terms[k].values[len(term.values) :] - fitted
        gap = gap[compared]
        if len(gap) < 2:
            return Check(math.inf, 0.0)
        return Check(float(gap.std()), relative_ess(gap) * len(gap) / len(points))


def _jittered(points: Tensor, n: int, generator: Generator) -> Tensor:
    """n of the points, moved along differences of others: the same shape, 1.5 times the variance."""
    a, b, c = (torch.randint(len(points), (n,), generator=generator) for _ in range(3))
    return points[a] + JITTER * (points[b] - points[c])
