"""The posterior once the period is known: from samples of the posterior under a wide prior of P.

One window says next to nothing of P. A transit lasts far less than an orbit, so its light curve depends on the orbit
through two numbers alone, the speed v = a / P and the impact parameter b = a cos(inc):

    z(t)^2 = a^2 (sin^2 phi + cos^2 inc cos^2 phi) = (2 pi v t)^2 + b^2 + O(phi^2),       phi = 2 pi t / P.

Windows that are centred on their own dips lose the times between the transits, which know P to 1e-4; so under the wide
prior of P the posterior of a is as wide as P (a = v P), however many windows there are. Putting the known period back is a
change of prior that needs no network: with w = log of the prior in (v, b, P), Jacobian included,

    p(v, b | x, P = P') / p(v, b | x)  proportional to  exp w(v, b, P') / integral of exp w(v, b, P) dP,

each sample keeps its v and b, gets a = v P' and inc = arccos(b / a), and this weight. The other way round, P given v and b has
the density exp w in any posterior: `redraw_period` draws from it, which moves samples far along a = v P in one step.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from reprior.errors import InputError
from reprior_transits.transit_prior import MEAN, PARAMETERS, STD

__all__ = ["redraw_period", "with_period"]

A, INC, PERIOD = (PARAMETERS.index(name) for name in ("a", "inc", "P"))
NODES = 41  # periods of the integral, over four prior standard deviations each side


def with_period(theta: Tensor, period: float, seed: int = 0) -> tuple[Tensor, float]:
    """Posterior samples under the reference prior turned into samples with a known period.

    Arguments:
        theta: samples under the reference prior, with shape (n, 8).
        period: the known period P' in days.
        seed: of the resampling.

    Returns: theta with P = P' and inc <= 90, with shape (n, 8), and the relative ESS of the weights.
    """
    if theta.ndim != 2 or theta.shape[1] != len(PARAMETERS):
        raise InputError(f"theta must have shape (n, 8); got {tuple(theta.shape)}")
    if not (math.isfinite(period) and period > 0):
        raise InputError(f"period must be > 0 days; got {period}")
    (v, b), grid = _speed_and_impact(theta), _periods()
    log_w = _log_prior(v, b, torch.full_like(v, period)) - torch.logsumexp(
        _log_prior(v.unsqueeze(-1), b.unsqueeze(-1), grid), -1
    )
    weight = torch.softmax(log_w.nan_to_num(nan=-torch.inf), 0)  # a sample with no orbit at all has no weight
    if not bool(torch.isfinite(weight).all()):
        raise InputError(f"no sample has an orbit with a period of {period} d: b > a in all {len(theta)}")
    ess = float(1 / weight.square().sum()) / len(weight)
    rows = torch.multinomial(weight, len(weight), replacement=True, generator=torch.Generator().manual_seed(seed))
    return _placed(theta[rows], v[rows], b[rows], torch.full_like(v, period)), ess


def redraw_period(theta: Tensor, generator: Generator) -> Tensor:
    """Posterior samples with another P, drawn given their v and b, and the a and inc <= 90 that follow.

    Arguments:
        theta: samples under the reference prior, with shape (n, 8).
        generator: the source of randomness.
    """
    (v, b), grid = _speed_and_impact(theta), _periods()
    weight = torch.softmax(_log_prior(v.unsqueeze(-1), b.unsqueeze(-1), grid), -1)
    node = grid[torch.multinomial(weight, 1, generator=generator)[:, 0]]
    # Evenly about the node, within half a step.
    shift = (torch.rand(len(node), generator=generator) - 0.5) * (grid[1] - grid[0])
    period = (node + shift).clamp(min=1e-3)
    period = torch.where(v * period > b, period, theta[:, PERIOD].double())
    return _placed(theta, v, b, period)


def _speed_and_impact(theta: Tensor) -> tuple[Tensor, Tensor]:
    wide = theta.double()
    return wide[:, A] / wide[:, PERIOD], wide[:, A] * torch.deg2rad(wide[:, INC]).cos().abs()


def _periods() -> Tensor:
    grid = MEAN[PERIOD] + STD[PERIOD] * torch.linspace(-4, 4, NODES, dtype=torch.float64)
    return grid[grid > 0]


def _placed(theta: Tensor, v: Tensor, b: Tensor, period: Tensor) -> Tensor:
    """theta with a period, and the a and inc that keep v and b."""
    out, a = theta.clone(), v * period
    out[:, A], out[:, PERIOD] = a.to(out), period.to(out)
    out[:, INC] = torch.rad2deg(torch.arccos((b / a).clamp(max=1))).to(out)
    return out


def _log_prior(v: Tensor, b: Tensor, period: Tensor) -> Tensor:
    """log of the prior density of (v, b, P), up to a constant, both signs of cos(inc) added; -inf where b > a."""
    a = v * period
    ratio = b / a
    inc = torch.rad2deg(torch.arccos(ratio.clamp(max=1)))
    both = torch.logaddexp(_gauss(inc, INC), _gauss(180 - inc, INC))
    # |d(a, inc) / d(v, b)| = P / (a sin inc).
    jacobian = period.log() - a.log() - torch.sin(torch.deg2rad(inc)).log()
    log_p = _gauss(a, A) + both + _gauss(period, PERIOD) + jacobian
    return torch.where((ratio < 1) & (a > 1), log_p, -torch.inf)


def _gauss(value: Tensor, i: int) -> Tensor:
    return -(((value - MEAN[i]) / STD[i]) ** 2) / 2
