"""The training set of a learned ratio: base samples, weighted by r, at observations that are likely under q.

The guidance is the gradient of a log ratio in theta_t, so any factor that depends on x alone drops out. ``joint``
weights r(theta_0) estimate log q(theta_t, x)/p(theta_t, x), as in the paper. ``posterior`` weights are normalised
within each x and estimate log q(theta_t | x)/p(theta_t | x). This has the same gradient and far less variance. Its
observations are stored x, half of them resampled with weights r towards q's marginal; the weights are tempered where a few
rows would dominate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from reprior.errors import InputError, RefusedError
from reprior.methods.learned.draws import base_draws
from reprior.methods.learned.settings import RatioSettings
from reprior.methods.method import Problem
from reprior.methods.plug_in import precision_of
from reprior.observations import tempered_weights, usable
from reprior.quadratic import Quadratic
from reprior.weights import relative_ess

__all__ = ["TrainingSet", "make_training_set"]


@dataclass(frozen=True)
class TrainingSet:
    """Weighted draws of theta_0 with their x, standardised.

    Attributes:
        theta: draws, with shape (n, D).
        x: the distinct observations, with shape (K, m); NaN where missing.
        index: which observation each draw belongs to, with shape (n,).
        weight: the ratio r of each draw, averaging to one.
        log_z: log of the mean of r within each observation (posterior weights) or zeros, with shape (K,).
        precision: the inverse covariance of theta at each observation, with shape (K, d, d); zeros if not known.
        draws: the number of draws at each observation, one observation after the other; 0 if it varies.
        ess: the median over observations of the relative ESS of the weights within an observation (joint: of all).
    """

    theta: Tensor
    x: Tensor
    index: Tensor
    weight: Tensor
    log_z: Tensor
    precision: Tensor
    draws: int
    ess: float

    def split(self, fraction: float) -> tuple[Tensor, Tensor]:
        """Row indices held out and kept. Whole observations are held out: the last ones, as their order is random.

        A stored x that was drawn more than once may be on both sides, each time with draws of its own.
        """
        cut = int(len(self.x) * (1 - fraction))
        held = self.index >= max(1, cut)
        return held.nonzero()[:, 0], (~held).nonzero()[:, 0]


def make_training_set(
    problem: Problem, settings: RatioSettings, seed: int, transported: Quadratic | None = None
) -> TrainingSet:
    """The training set that the settings ask for.

    Arguments:
        problem: the base posterior, with its simulations, and the change of prior.
        settings: the weights, and how much is drawn.
        seed: draws the observations, and theta at each.
        transported: a part of log r that is transported: draws and weights are those of the rest.
    """
    generator = torch.Generator().manual_seed(seed)
    if settings.weights == "joint":
        return _joint(problem, settings, generator)
    return _posterior(problem, settings, generator, transported)


def _stored(problem: Problem, whole: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The stored simulations, standardised: theta, x masked to NaN where it is not observed, and x as it is."""
    posterior, observed = problem.posterior, problem.observed
    if posterior.simulations is None:
        raise InputError(
            "learning a ratio needs the stored simulations: use posterior.with_simulations(theta, x), or a method "
            "that needs no training (transport, rejuvenate, sir)"
        )
    some = usable(posterior.simulations, observed, whole)
    theta, x = posterior.scales.theta.forward(some.theta), posterior.scales.x.forward(some.x)
    return theta, x if observed is None else torch.where(observed, x, torch.nan), x


def _posterior(
    problem: Problem, settings: RatioSettings, generator: Generator, transported: Quadratic | None
) -> TrainingSet:
    """Base draws at stored observations, weighted within each."""
    theta, x, _ = _stored(problem)
    change, draws = problem.change, settings.draws
    observations = max(2, min(settings.observations, len(theta)))
    weights = tempered_weights(change(theta), min(200.0, len(theta) / 10))
    towards = torch.multinomial(weights, observations // 2, replacement=True, generator=generator)
    plain = torch.randint(len(theta), (observations - len(towards),), generator=generator)
    rows = torch.cat([towards, plain])
    x = x[rows[torch.randperm(len(rows), generator=generator)]]
    pool = base_draws(problem, x, draws, settings.sampler, generator, transported)  # (draws, K, D)
    log_r = change.log_w(pool) if transported is None else change.log_w(pool) - transported(pool)
    _check_mass(log_r)
    log_z = torch.logsumexp(log_r, 0) - torch.log(torch.tensor(float(draws)))
    return TrainingSet(
        theta=pool.transpose(0, 1).reshape(-1, pool.shape[-1]),
        x=x,
        index=torch.arange(len(x)).repeat_interleave(draws),
        weight=(torch.softmax(log_r, 0) * draws).T.reshape(-1).nan_to_num(nan=0.0),
        log_z=log_z.nan_to_num(nan=0.0, neginf=0.0, posinf=0.0),
        precision=precision_of(pool, problem.posterior.dim),
        draws=draws,
        ess=float(torch.tensor([relative_ess(log_r[:, k]) for k in range(len(x))]).median()),
    )


def _joint(problem: Problem, settings: RatioSettings, generator: Generator) -> TrainingSet:
    """The paper's training set: all stored pairs, and base draws at some stored observations, with joint weights."""
    theta, x, full = _stored(problem, whole=True)
    observed, draws = problem.observed, settings.draws
    hidden = torch.tensor([], dtype=torch.long) if observed is None else (~observed).nonzero()[:, 0]
    theta = torch.cat([theta, full[:, hidden]], dim=1)
    chosen = torch.randperm(len(x), generator=generator)[: settings.observations]
    more = base_draws(problem, x[chosen], draws, settings.sampler, generator)
    every = torch.cat([theta, more.transpose(0, 1).reshape(-1, theta.shape[1])])
    log_r = problem.change.log_w(every)
    _check_mass(log_r)
    index = torch.cat([torch.arange(len(x)), chosen.repeat_interleave(draws)])
    place = torch.randperm(len(x), generator=generator)  # random order, so that the held-out ones are a fair sample
    return TrainingSet(
        theta=every,
        x=x[torch.argsort(place)],
        index=place[index],
        weight=torch.softmax(log_r, 0) * len(log_r),
        log_z=torch.zeros(len(x)),
        precision=torch.zeros(len(x), problem.posterior.dim, problem.posterior.dim),
        draws=0,
        ess=relative_ess(log_r),
    )


def _check_mass(log_r: Tensor) -> None:
    """Refuses log weights that are all zero."""
    if bool((log_r == -torch.inf).all()):
        raise RefusedError(
            "no base draw at the stored observations has mass under the target prior: it is too narrow to learn a ratio "
            "from them; use method='rejuvenate' or 'sir'"
        )
