"""``accumulate``: the carried prior is the exact sum of the base's own log-densities. No ratio is learned from samples.

For each observation n:

1. the posterior is drawn under log r_{n-1}, the fitted sum of the terms before (`reprior.sequential.terms`), by rejuvenation;
2. the base's log-density at x_n is computed at points near these draws and its own: the new term;
3. the draws make some Metropolis moves under log p(theta | x_n) + log r_{n-1}, both as fits, which removes the error
   of the drawing;
4. every term is computed again at some of the draws. That measures the fit, and the next fit includes these points; with
   more than one round (`AccumulateSettings.rounds`) a fit that is not good enough is made anew at once, and the draws move
   again.

The samples of one step give the next one places to look at, never values: errors of sampling do not add up.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reprior import priors
from reprior.adapted import AdaptedPosterior
from reprior.change import PriorChange
from reprior.methods import Problem, find
from reprior.posterior import Posterior
from reprior.sequential.moves import difference_moves
from reprior.sequential.settings import AccumulateSettings
from reprior.sequential.surrogate import CarriedRatio
from reprior.sequential.terms import Term, Terms

__all__ = ["Accumulate"]

REGION = 2_000  # points of earlier terms that say where log r was fitted: enough for an average over the region
FIELDS = ("x", "mean", "cov", "points", "values")


class Accumulate:
    """The state of a run.

    Arguments:
        posterior: the base posterior.
        nuisance: the indices of parameters that are not carried.
        settings: the settings.
        state: tensors of `state`, to go on from.
    """

    def __init__(
        self,
        posterior: Posterior,
        nuisance: tuple[int, ...],
        settings: AccumulateSettings,
        state: Mapping[str, Tensor] | None = None,
    ):
        self.posterior, self.settings = posterior, settings
        terms = []
        while state and f"{len(terms)}.x" in state:
            terms.append(Term(**{name: state[f"{len(terms)}.{name}"] for name in FIELDS}))
        self.terms = Terms(posterior, nuisance, settings.points, settings.checks, tuple(terms), settings.coordinates)
        self._log_r: CarriedRatio | None = None

    def adapt(self, x: Tensor, seed: int) -> AdaptedPosterior:
        """The posterior of the next observation x, under the prior carried so far."""
        generator = torch.Generator().manual_seed(seed)
        self._log_r = log_r = self.terms.ratio(generator)
        posterior, region = self.posterior, self._region(seed)
        change = PriorChange(posterior.prior, posterior.scales.theta, log_r, kind="carried", region=region)
        method = find("rejuvenate").build(Problem(posterior, change, seed), self.settings.rejuvenate)
        why = f"the prior is the exact sum of {len(self.terms.terms)} log-densities of the base"
        return AdaptedPosterior(posterior, change, method.because(why), posterior.sampler)

    def _region(self, seed: int) -> Tensor:
        """Points over which log r is fitted, with shape (n, d); nuisance entries are drawn from the prior."""
        points = torch.cat([term.points[-REGION:] for term in self.terms.terms])[-REGION:]
        space, carried = self.terms.space, self.terms.nuisance.carried
        z = space.scale.forward(priors.sample(space.prior, len(points), seed))
        z[:, carried] = points[:, carried].to(z)
        return space.user(z)

    def finish(self, x: Tensor, samples: Tensor, seed: int) -> tuple[Tensor, dict[str, float]]:
        """Takes in the observation x: corrects its samples, with shape (n, d), and adds its term.

        Returns: the corrected samples, and figures of the fit.
        """
        generator = torch.Generator().manual_seed(seed + 1)
        self.terms.add(x, samples, generator)
        samples, figures = self._move(samples, generator)
        check = self.terms.check(samples, generator, self._log_r)
        for _ in range(self.settings.rounds - 1):
            if self._log_r is None or check.ess >= self.settings.enough:
                break
            self._log_r = self.terms.ratio(generator, len(self.terms.terms) - 1)
            samples, figures = self._move(samples, generator)
            check = self.terms.check(samples, generator, self._log_r)
        return samples, {**figures, "agreement": check.ess, "fit_error": check.error}

    def _move(self, samples: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Metropolis moves of the samples under the fitted posterior, and what they did."""
        if self._log_r is None or not self.settings.moves:
            return samples, {}
        log_r = self._log_r
        log_p = self.terms.joint(self.terms.terms[-1], generator)

        def log_f(theta: Tensor) -> Tensor:
            inside = torch.isfinite(priors.log_prob(self.posterior.prior, theta))
            return (log_p(theta) + log_r(theta)).masked_fill(~inside, -torch.inf)

        moved, accepted = difference_moves(log_f, samples, self.settings.moves, generator)
        shift = ((moved.mean(0) - samples.mean(0)) / moved.std(0)).abs().max()
        return moved, {"accepted": accepted, "moved": float(shift)}

    def state(self) -> dict[str, Tensor]:
        """The tensors that a run goes on from."""
        return {f"{k}.{name}": getattr(t, name) for k, t in enumerate(self.terms.terms) for name in FIELDS}
