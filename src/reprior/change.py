"""The change of prior: log r = log q - log p, from a target prior given in any form.

q may be a distribution (normalised), a callable log-density (up to a constant), or samples, from which log q/p is
learned (`reprior.ratio_from_samples`). Before anything is trained, q is checked against p: mass of q where p has
none cannot be reached by any reweighting and is an error unless accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch import Tensor

from reprior import priors
from reprior.arrays import as_array
from reprior.errors import InputError, SupportError
from reprior.standardizer import Standardizer

__all__ = ["PriorChange", "make_change", "outer_of", "reach_of"]

TOLERATED = 1e-3  # of q's mass outside p's support, with a warning
CHECKED = 10_000  # draws of q that are checked against the support of p
KNOWN = 50_000  # draws of p: the rarest of them marks how far out a base can have learned anything
PIECES = 64  # of the way between two points, over which the gradient of log r is added up
STEPPED = 0.05  # the share of such ways over which it does not add up, from which on log r has steps
MARKS = 16  # draws at which `mark` looks
FEW = 0.01  # draws further out than that are stray where they are a smaller part of a posterior than this, and of q


@dataclass(frozen=True)
class PriorChange:
    """log r(theta) = log q(theta) - log p(theta), in user units and in standardised ones.

    Attributes:
        prior: the prior p.
        target: the target prior q as a distribution, or None where only a log-density or samples are known.
        log_q: log q up to a constant, (*, d) -> (*); or log r itself where `is_ratio`.
        is_ratio: whether `log_q` is log q/p already (learned from samples).
        kind: "distribution", "callable", "samples", or "carried" (`reprior.sequential`).
        scale: the standardisation of theta.
        outside: the fraction of q's mass outside p's support (NaN where q cannot be sampled).
        same: whether q equals p up to a constant.
        differentiable: whether log r has a gradient that autograd can take.
        region: draws of theta, with shape (n, d), over which log r is known, where that is not all of p (a ratio that was
            fitted to a posterior); None otherwise.
        reach: the least log p that a simulation is likely to have had; see `least_log_p`.
        outer: the log q that all but few draws of q exceed.
        taken: what was taken out of log r (`without`), of standardised parameters; None if nothing was.
    """

    prior: Any
    target: Any
    log_q: Callable[[Tensor], Tensor]
    is_ratio: bool
    kind: str
    scale: Standardizer
    outside: float = float("nan")
    same: bool = False
    differentiable: bool = True
    region: Tensor | None = None
    reach: float = -float("inf")
    outer: float = -float("inf")
    taken: Callable[[Tensor], Tensor] | None = None

    def log_r(self, theta: Tensor) -> Tensor:
        """log r in the user's units, theta with shape (*, d); -inf outside the support of q."""
        value = self.log_q(theta)
        if not self.is_ratio:
            value = value - priors.log_prob(self.prior, theta)
        # Outside p's support log r is undefined; such theta are never kept, so their weight is nothing.
        return torch.where(value.isnan() | (value == torch.inf), torch.full_like(value, -torch.inf), value)

    @torch.no_grad()
    def mark(self, points: Tensor | None = None) -> Tensor:
        """log r, less its largest value, at points with shape (n, d): it tells one target prior from another.

        Arguments:
            points: a few draws of the prior if None, as in files of before.
        """
        return priors.mark(self.log_r(priors.sample(self.prior, MARKS, seed=0) if points is None else points))

    def mark_points(self) -> Tensor:
        """Where `mark` is to look, with shape (n, d): draws of p, and of q, which may miss every draw of p."""
        return torch.cat([priors.sample(self.prior, MARKS, seed=0), self.draw(MARKS, seed=0)])

    def __call__(self, z: Tensor) -> Tensor:
        """log r of standardised parameters, with shape (*, D); only the first d entries count. Shape (*)."""
        d = len(self.scale.shift)
        here = self.scale.shift.device
        return self.log_r(self.scale.inverse(z[..., :d].to(here))).to(z.device)

    @torch.no_grad()
    def log_w(self, z: Tensor, least: Tensor | None = None) -> Tensor:
        """Log weights of base draws: log r, and -inf for the stray ones, with shape (n, *).

        A network extrapolates beyond the simulations, and where q is wider than p, r grows without limit there: a stray
        draw would take all the weight. So a draw beyond the simulations counts only where q has its mass.

        Arguments:
            z: standardised draws, n of each posterior, with shape (n, *, D).
            least: the least log p of a draw that is kept, with shape (*); `least_log_p` of these draws if None.
        """
        least = self.least_log_p(z) if least is None else least
        log_p, log_r = self.log_p(z), self(z)
        log_q = log_p + log_r if self.taken is None else log_p + log_r + self.taken(z)
        stray = (log_p < least) & (log_q < self.outer)
        return torch.where(stray, -torch.inf, log_r)

    def least_log_p(self, z: Tensor) -> Tensor:
        """Below which log p a draw of these posteriors is stray, with shape (*), for draws with shape (n, *, D).

        It is the reach where nearly all of a posterior lies within it. One that lies further out has no limit: what it
        knows is extrapolated as a whole.
        """
        beyond = (self.log_p(z) < self.reach).float().mean(0)
        return torch.where(beyond < FEW, self.reach, -torch.inf)

    def log_p(self, z: Tensor) -> Tensor:
        """log p of standardised parameters, with shape (*, D); only the first d entries count. Shape (*)."""
        theta = self.scale.inverse(z[..., : len(self.scale.shift)].to(self.scale.shift.device))
        return priors.log_prob(self.prior, theta).to(z.device)

    def without(self, part: Callable[[Tensor], Tensor]) -> PriorChange:
        """The change that is left when a part of log r (of standardised parameters) is taken out of it."""
        return replace(
            self,
            target=None,
            log_q=partial(_left, self, part),
            is_ratio=True,
            kind="callable",
            same=False,
            taken=part,
        )

    def draw(self, n: int, seed: int) -> Tensor:
        """Draws of q, with shape (n, d): its own, or draws of p resampled by r where q cannot be sampled."""
        if self.target is not None:
            theta = priors.sample(self.target, n, seed)
            return theta[self.inside(theta)]
        theta = priors.sample(self.prior, 20 * n, seed)
        weights = torch.softmax(self.log_r(theta).double(), 0)
        generator = torch.Generator().manual_seed(seed)
        return theta[torch.multinomial(weights, n, replacement=True, generator=generator)]

    def inside(self, theta: Tensor) -> Tensor:
        """Which theta, with shape (*, d), have mass under both p and q."""
        return torch.isfinite(priors.log_prob(self.prior, theta)) & torch.isfinite(self.log_r(theta))

    def cuts(self, seed: int = 0) -> bool:
        """Whether q has no mass in parts of p's support, by draws of p."""
        return not bool(self.inside(priors.sample(self.prior, 1_000, seed)).all())


def _left(change: PriorChange, part: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """What is left of log r, at theta with shape (*, d), without a part of it."""
    return change.log_r(theta) - part(change.scale.forward(theta))


def make_change(prior: Any, target: Any, scale: Standardizer, seed: int, accept_outside: bool = False) -> PriorChange:
    """Reads a target prior and checks it against the prior.

    Arguments:
        prior: the prior p.
        target: a distribution (anything `reprior.priors.as_prior` takes), a callable log-density, or samples of q (a
            tensor or array) with shape (n, d).
        scale: the standardisation of theta.
        seed: seeds the checks and the ratio that samples need.
        accept_outside: go on although q has mass outside p's support; the result is q restricted to that support.
    """
    dim = len(scale.shift)
    target = as_array(target)
    if isinstance(target, np.ndarray):
        target = torch.as_tensor(target, dtype=torch.float32)
    if isinstance(target, Tensor):
        return _from_samples(prior, target, scale, seed, accept_outside)
    if not hasattr(target, "log_prob") and not hasattr(target, "logpdf") and callable(target):
        given: Any = target
        change = PriorChange(prior, None, _checked_callable(given, prior, seed), False, "callable", scale)
    else:
        target = priors.as_prior(target)
        if priors.dim_of(target) != dim:
            hint = "; a list of distributions gives each parameter its own" if priors.dim_of(target) == 1 else ""
            raise InputError(f"the target prior has {priors.dim_of(target)} parameters; the posterior has {dim}{hint}")
        outside = outside_fraction(prior, priors.sample(target, CHECKED, seed), accept_outside)
        change = PriorChange(prior, target, partial(priors.log_prob, target), False, "distribution", scale, outside)
    return _finish(change, seed)


def outside_fraction(prior: Any, theta: Tensor, accept: bool) -> float:
    """The fraction of draws of q, with shape (n, d), where p has no mass; an error, if not tiny, unless that is accepted."""
    fraction = float((~torch.isfinite(priors.log_prob(prior, theta))).float().mean())
    if fraction > TOLERATED and not accept:
        raise SupportError(
            f"{100 * fraction:.3g} % of the target prior's mass lies outside the support of the prior the posterior was "
            "trained under; no reweighting can reach it. Narrow the target prior, or pass accept_outside=True to "
            "get the posterior under the target prior restricted to that support"
        )
    if fraction >= 0.999:
        raise SupportError("the target prior has no mass inside the support of the training prior")
    return fraction


def _checked_callable(target: Callable[[Tensor], Tensor], prior: Any, seed: int) -> Callable[[Tensor], Tensor]:
    theta = priors.sample(prior, 16, seed).float()
    with torch.no_grad():
        value = torch.as_tensor(target(theta))
    if value.shape != (16,):
        raise InputError(
            f"a callable target prior must map theta of shape (n, d) to (n,); it gave {tuple(value.shape)} for (16, d)"
        )

    many = priors.sample(prior, 1_000, seed).float()
    with torch.no_grad():
        unknown = float(torch.isnan(torch.as_tensor(target(many))).float().mean())
    if unknown > 0:
        warn(
            f"the target's log-density is NaN at {100 * unknown:.3g} % of draws of the prior: these are taken to have no "
            "mass. Let it give -inf there, if that is meant",
            stacklevel=4,
        )
    return partial(_call, target, priors.followed(target, theta))


def _call(target: Callable[[Tensor], Tensor], followed: bool, theta: Tensor) -> Tensor:
    """A user's log-density at theta with shape (*, d); followed: whether autograd sees through it."""
    flat = theta.reshape(-1, theta.shape[-1]).float()  # a network in single precision takes no other
    flat = flat if followed else flat.detach()
    return torch.as_tensor(target(flat)).to(theta).reshape(theta.shape[:-1])


def _from_samples(prior: Any, samples: Tensor, scale: Standardizer, seed: int, accept: bool) -> PriorChange:
    from reprior.ratio_from_samples import learn_log_ratio

    dim = len(scale.shift)
    if samples.ndim != 2 or samples.shape[1] != dim:
        raise InputError(f"samples of the target prior need shape (n, {dim}); got {tuple(samples.shape)}")
    if not bool(torch.isfinite(samples).all()):
        raise InputError("samples of the target prior hold NaN or inf")
    if len(samples) < 100:
        raise InputError(f"at least 100 samples of the target prior are needed; got {len(samples)}")
    outside = outside_fraction(prior, samples, accept)
    kept = samples[torch.isfinite(priors.log_prob(prior, samples))].float()
    network = learn_log_ratio(kept, priors.sample(prior, max(len(kept), 20_000), seed + 1), scale, seed)
    return _finish(PriorChange(prior, None, network, True, "samples", scale, outside), seed)


def _finish(change: PriorChange, seed: int) -> PriorChange:
    theta = priors.sample(change.prior, 1_000, seed + 2)
    if change.target is not None:  # a narrow q may miss every draw of p
        of_q = priors.sample(change.target, 1_000, seed + 2).to(theta)
        theta = torch.cat([theta, of_q[change.inside(of_q)]])
    log_r = change.log_r(theta).detach()
    if bool((log_r == -torch.inf).all()):
        raise SupportError("the target prior has no mass on any of 1,000 draws of the training prior")
    finite = log_r[torch.isfinite(log_r)]
    same = len(finite) == len(log_r) and float(finite.max() - finite.min()) < 1e-4
    gradient = _has_gradient(change, theta[torch.isfinite(log_r)][-64:], seed)
    change = replace(change, same=same, differentiable=gradient)
    return replace(change, reach=reach_of(change.prior), outer=outer_of(change))


@torch.no_grad()
def outer_of(change: PriorChange) -> float:
    """The log q, up to q's constant, that all but few draws of q exceed; the same whatever the seed of the change."""
    theta = change.draw(5_000, 0)
    log_q = change.log_r(theta) + priors.log_prob(change.prior, theta)
    return float(torch.quantile(log_q[torch.isfinite(log_q)], FEW))


def reach_of(prior: Any) -> float:
    """The least log p of many draws of p; the same for the same prior, whatever the seed of the change."""
    return float(priors.log_prob(prior, priors.sample(prior, KNOWN, 0)).min()) - 1e-3  # for rounding, where p is flat


def _has_gradient(change: PriorChange, theta: Tensor, seed: int) -> bool:
    """Whether autograd's gradient of log r is its slope: a log q from numpy or scipy gives autograd that of p alone."""
    with torch.enable_grad():
        theta = theta.detach().clone().requires_grad_(True)
        value = change.log_r(theta)
        if not value.requires_grad:
            return False
        (gradient,) = torch.autograd.grad(value.sum(), theta, allow_unused=True)
    if gradient is None or not bool(torch.isfinite(gradient).all()):
        return False
    with torch.no_grad():
        noise = torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed))
        step = 0.02 * change.scale.scale.cpu() * noise.to(theta)
        rise = (change.log_r(theta + step) - change.log_r(theta - step)) / 2
        told = (gradient * step).sum(-1)
        fine = torch.isfinite(rise)  # a step may leave the support
        allowed = 0.1 * told.abs() + 1e-4 * (1 + value.abs())  # curvature, and rounding in single precision
        local = not bool(fine.any()) or float(((rise - told).abs() <= allowed)[fine].float().mean()) > 0.5
    return local and _adds_up(change, theta.detach(), seed)


def _adds_up(change: PriorChange, theta: Tensor, seed: int) -> bool:
    """Whether the gradient adds up to the difference of log r between points: it does not over a step (a histogram)."""
    order = torch.randperm(len(theta), generator=torch.Generator().manual_seed(seed + 1))
    start, way = theta, theta[order] - theta
    middles = (torch.arange(PIECES, device=theta.device, dtype=theta.dtype) + 0.5) / PIECES
    with torch.enable_grad():
        path = (start + middles[:, None, None] * way).requires_grad_(True)
        value = change.log_r(path)
        (gradient,) = torch.autograd.grad(value.sum(), path)
    pieces = (gradient * way).sum(-1) / PIECES  # (pieces, pairs)
    with torch.no_grad():
        rise = change.log_r(theta[order]) - change.log_r(start)
    inside = torch.isfinite(value).all(0) & torch.isfinite(pieces).all(0) & torch.isfinite(rise)
    allowed = 0.1 + 0.1 * pieces.abs().sum(0)  # the sum is no integral: kinks, and slopes that grow towards an edge
    off = ((pieces.sum(0) - rise).abs() > allowed)[inside].float()
    return len(off) == 0 or float(off.mean()) < STEPPED
