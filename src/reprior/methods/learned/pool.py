"""The training set of a learned guidance: base samples, weighted by r, at the observations where they will be asked.

The guidance is the gradient of a log ratio in theta_t, so any factor that depends on x alone drops out. ``joint``
weights r(theta_0) estimate log q(theta_t, x)/p(theta_t, x), as in the paper. ``posterior`` weights are normalised
within each x and estimate log q(theta_t | x)/p(theta_t | x): the same gradient, far less variance. Their x are stored
ones, half of them resampled towards q's marginal (with weights r, tempered where few would dominate).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from reprior_bench import metrics
from reprior.change import PriorChange
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError, RefusedError
from reprior.methods.plug_in import precision_of
from reprior.quadratic import Quadratic
from reprior.posterior import Posterior
from reprior.methods.learned.draws import base_draws
from reprior.simulations import Simulations
from reprior.weights import share

__all__ = ["Pool", "joint_pool", "likely_x", "posterior_pool", "tempered_weights", "usable"]


@dataclass(frozen=True)
class Pool:
    """Weighted draws of theta_0 with their x, standardised.

    Attributes:
        theta: draws, with shape (n, D).
        x: the distinct observations, with shape (K, m); NaN where missing.
        index: which observation each draw belongs to, with shape (n,).
        weight: the ratio r of each draw, averaging to one.
        log_z: log of the mean of r within each observation (posterior weights) or zeros, with shape (K,).
        precision: the inverse covariance of theta at each observation, with shape (K, d, d); zeros if not known.
        draws: the number of draws at each observation, one observation after the other; 0 if it varies.
        ess: the median over observations of ESS/N of the weights within an observation (joint: of all).
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
        """Row indices held out and kept: whole observations are held out (the last ones; their order is random).

        A stored x that was drawn more than once may be on both sides, each time with draws of its own.
        """
        cut = int(len(self.x) * (1 - fraction))
        held = self.index >= max(1, cut)
        return held.nonzero()[:, 0], (~held).nonzero()[:, 0]


def tempered_weights(log_r: Tensor, least: float) -> Tensor:
    """Normalised weights r^tau with the largest tau <= 1 whose effective number of rows is at least ``least``.

    Equal ones where no row has mass under q.

    Arguments:
        log_r: log ratios, with shape (n,).
        least: the least effective number of rows.
    """
    low, high = 0.0, 1.0
    if bool((log_r == -torch.inf).all()):
        return torch.full_like(log_r, 1 / len(log_r))
    if metrics.ess(log_r) * len(log_r) >= least:
        low = 1.0
    else:
        for _ in range(30):
            middle = (low + high) / 2
            if metrics.ess(middle * log_r) * len(log_r) >= least:
                low = middle
            else:
                high = middle
    finite = torch.where(torch.isfinite(log_r), low * log_r, log_r)
    return torch.softmax(finite, 0)


def likely_x(simulations: Simulations, change: PriorChange, n: int, generator: Generator) -> Tensor:
    """Stored observations where q puts them, with shape (n, m): resampled by r, tempered where few would dominate."""
    weights = tempered_weights(change.log_r(simulations.theta), least=min(100.0, len(simulations) / 10))
    return simulations.x[torch.multinomial(weights, n, replacement=True, generator=generator)]


def usable(simulations: Simulations, observed: Tensor | None, whole: bool = False) -> Simulations:
    """The simulations that have all observed entries of x, and with ``whole`` the others too; all if ``observed`` is None.

    Arguments:
        simulations: the stored simulations, which may have missing entries.
        observed: which entries of x are observed, with shape (m,).
        whole: whether the entries that are to be predicted are needed too.
    """
    if observed is None or not simulations.has_missing:
        return simulations
    kept = ~simulations.x[:, torch.ones_like(observed) if whole else observed].isnan().any(1)
    if int(kept.sum()) < 2:
        raise InputError(
            f"{int(kept.sum())} of {len(simulations)} stored simulations have all entries of x that are needed here: too few"
        )
    return simulations.subset(kept)


def stored(posterior: Posterior, observed: Tensor | None, whole: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The stored simulations, standardised: theta, x masked to NaN where it is not observed, and x as it is."""
    if posterior.simulations is None:
        raise InputError(
            "learning a guidance needs the stored simulations: use posterior.with_simulations(theta, x), or a method "
            "that needs no training (transport, rejuvenate, sir)"
        )
    some = usable(posterior.simulations, observed, whole)
    theta, x = posterior.scales.theta.forward(some.theta), posterior.scales.x.forward(some.x)
    return theta, x if observed is None else torch.where(observed, x, torch.nan), x


def posterior_pool(
    posterior: Posterior,
    change: PriorChange,
    observations: int,
    draws: int,
    sampler: Sampler,
    generator: Generator,
    observed: Tensor | None = None,
    under: Quadratic | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Pool:
    """Base draws at stored observations, weighted within each.

    Arguments:
        posterior: the base posterior, with its simulations.
        change: the change of prior.
        observations: the number of observations.
        draws: the number of base draws for each.
        sampler: how they are drawn.
        generator: the source of randomness.
        observed: which entries of x are observed, with shape (m,); all if None.
        under: a part of log r that transport takes over: draws and weights are those of what is left.
        cache: the folder where base draws are kept, or None.
    """
    theta, x, _ = stored(posterior, observed)
    weights = tempered_weights(change(theta), least=min(200.0, len(theta) / 10))
    towards = torch.multinomial(weights, observations // 2, replacement=True, generator=generator)
    plain = torch.randint(len(theta), (observations - len(towards),), generator=generator)
    rows = torch.cat([towards, plain])
    rows = rows[torch.randperm(len(rows), generator=generator)]
    x = x[rows]
    pool = base_draws(posterior, x, draws, sampler, generator, observed is not None, under, cache)  # (draws, K, D)
    log_r = change.log_w(pool) if under is None else change.log_w(pool) - under(pool)
    _check_mass(log_r)
    weight = torch.softmax(log_r, 0) * draws
    ess = float(torch.tensor([share(log_r[:, k]) for k in range(len(x))]).median())
    log_z = torch.logsumexp(log_r, 0) - torch.log(torch.tensor(float(draws)))
    index = torch.arange(len(x)).repeat_interleave(draws)
    return Pool(
        pool.transpose(0, 1).reshape(-1, pool.shape[-1]),
        x,
        index,
        weight.T.reshape(-1).nan_to_num(nan=0.0),
        log_z.nan_to_num(nan=0.0, neginf=0.0, posinf=0.0),
        precision_of(pool, posterior.dim),
        draws,
        ess,
    )


def _check_mass(log_r: Tensor) -> None:
    if bool((log_r == -torch.inf).all()):
        raise RefusedError(
            "no base draw at the stored observations has mass under the target prior: it is too narrow to learn a ratio "
            "from them; use method='rejuvenate' or 'sir'"
        )


def joint_pool(
    posterior: Posterior,
    change: PriorChange,
    observations: int,
    draws: int,
    sampler: Sampler,
    generator: Generator,
    observed: Tensor | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Pool:
    """The paper's training set: all stored pairs, and base draws at some stored observations, with joint weights.

    Arguments as in `posterior_pool`.
    """
    theta, x, full = stored(posterior, observed, whole=True)
    hidden = torch.tensor([], dtype=torch.long) if observed is None else (~observed).nonzero()[:, 0]
    theta = torch.cat([theta, full[:, hidden]], dim=1)
    chosen = torch.randperm(len(x), generator=generator)[:observations]
    more = base_draws(posterior, x[chosen], draws, sampler, generator, observed is not None, cache=cache)
    every = torch.cat([theta, more.transpose(0, 1).reshape(-1, theta.shape[1])])
    log_r = change.log_w(every)
    _check_mass(log_r)
    index = torch.cat([torch.arange(len(x)), chosen.repeat_interleave(draws)])
    # Random order of the observations, so that the held-out ones are a fair sample.
    place = torch.randperm(len(x), generator=generator)
    weight = torch.softmax(log_r, 0) * len(log_r)
    unknown = torch.zeros(len(x), posterior.dim, posterior.dim)
    x = x[torch.argsort(place)]
    return Pool(every, x, place[index], weight, torch.zeros(len(x)), unknown, 0, metrics.ess(log_r))
