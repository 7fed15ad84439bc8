"""The change of prior, log r = log q - log p, and its properties.

`reprior.target.make_change` reads what the user gives as q and makes a `PriorChange`. A log ratio that is a network goes
into a `PriorChange` directly. The properties of log r (its quadratic part, whether it has a gradient, the trusted region)
are computed at first use and kept.

**Trusted region.** A base has learned only where simulations are: where log p(theta) is at least the lowest value among
draws of p. Outside this region a network extrapolates. Where q is wider than p, r grows without limit there, and one stray
draw would take all the weight. A draw outside the region therefore gets weight only where q has most of its mass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reprior import priors
from reprior.standardizer import Standardizer

if TYPE_CHECKING:
    from reprior.quadratic import Quadratic

__all__ = ["PriorChange"]

PRIOR_DRAWS = 50_000  # draws of p whose lowest log p bounds the trusted region: about as many as a base has seen
TARGET_DRAWS = 5_000  # draws of q that show where q has its mass: all but the fraction RARE of lowest log q
RARE = 0.01  # fraction: draws outside the trusted region count as stray if fewer than this of a posterior lie outside
PIECES = 64  # pieces of the straight line between two points, over which the gradient of log r is integrated
DISCONTINUOUS = 0.05  # log r counts as discontinuous if the integral is wrong on at least this fraction of lines


@dataclass(frozen=True)
class PriorChange:
    """log r(theta) = log q(theta) - log p(theta), in user units and in standardised ones.

    Attributes:
        prior: the prior p.
        scale: the standardisation of theta.
        log_ratio: log r up to a constant, theta with shape (*, d) -> (*), in user units.
        target: the target prior q as a distribution, or None where only a log-density or samples are known.
        kind: "distribution", "callable", "samples", or "carried" (`reprior.sequential`).
        outside: the fraction of q's mass outside p's support (NaN where q cannot be sampled).
        region: draws of theta, with shape (n, d), over which log r is known, if that is not all of p (a ratio that was
            fitted to a posterior); None otherwise.
        whole: the full change, if this one is the full change minus a part (`minus`); None otherwise.
    """

    prior: Any
    scale: Standardizer
    log_ratio: Callable[[Tensor], Tensor]
    target: Any = None
    kind: str = "callable"
    outside: float = float("nan")
    region: Tensor | None = None
    whole: PriorChange | None = None

    def log_r(self, theta: Tensor) -> Tensor:
        """log r in the user's units, theta with shape (*, d); -inf outside the support of q."""
        value = self.log_ratio(theta)
        # Outside p's support log r is undefined; such theta are never kept, so their weight is zero.
        return torch.where(value.isnan() | (value == torch.inf), torch.full_like(value, -torch.inf), value)

    def __call__(self, z: Tensor) -> Tensor:
        """log r of standardised parameters, with shape (*, D); only the first d entries count. Shape (*)."""
        d = len(self.scale.shift)
        here = self.scale.shift.device
        return self.log_r(self.scale.inverse(z[..., :d].to(here))).to(z.device)

    def log_p(self, z: Tensor) -> Tensor:
        """log p of standardised parameters, with shape (*, D); only the first d entries count. Shape (*)."""
        theta = self.scale.inverse(z[..., : len(self.scale.shift)].to(self.scale.shift.device))
        return priors.log_prob(self.prior, theta).to(z.device)

    def minus(self, part: Callable[[Tensor], Tensor]) -> PriorChange:
        """The change with log r minus a part; the part is a function of standardised parameters."""
        return replace(
            self, target=None, log_ratio=partial(_minus, self, part), kind="callable", whole=self.whole or self
        )

    def draw(self, n: int, seed: int) -> Tensor:
        """Draws of q inside p's support, with shape (at most n, d); draws of p resampled by r if q cannot be sampled."""
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

    # Weights

    @torch.no_grad()
    def log_w(self, z: Tensor, lowest: Tensor | None = None) -> Tensor:
        """Log weights of base draws: log r, and -inf for stray ones, with shape (n, *).

        Arguments:
            z: standardised draws, n of each posterior, with shape (n, *, D).
            lowest: the lowest log p of a draw that is trusted, with shape (*); `lowest_trusted` of these draws if None.
        """
        lowest = self.lowest_trusted(z) if lowest is None else lowest
        log_p, log_r = self.log_p(z), self(z)
        log_q = log_p + (log_r if self.whole is None else self.whole(z))
        stray = (log_p < lowest) & (log_q < self.lowest_log_q)
        return torch.where(stray, -torch.inf, log_r)

    def lowest_trusted(self, z: Tensor) -> Tensor:
        """The lowest log p of a draw that is trusted, with shape (*), for draws of posteriors with shape (n, *, D).

        It is the edge of the trusted region if nearly all of a posterior lies inside. For a posterior further out there is
        no limit (-inf), because all of it is extrapolated anyway.
        """
        beyond = (self.log_p(z) < self.lowest_log_p).float().mean(0)
        return torch.where(beyond < RARE, self.lowest_log_p, -torch.inf)

    @cached_property
    def lowest_log_p(self) -> float:
        """The lowest log p of many draws of p: the edge of the trusted region; -inf for a ratio with a `region`."""
        if self.region is not None:
            return -float("inf")
        log_p = priors.log_prob(self.prior, priors.sample(self.prior, PRIOR_DRAWS, 0))
        return float(log_p.min()) - 1e-3  # for rounding, where p is flat

    @cached_property
    @torch.no_grad()
    def lowest_log_q(self) -> float:
        """The quantile RARE of log q over draws of q, up to q's constant; -inf for a ratio with a `region`."""
        if self.region is not None:
            return -float("inf")
        if self.whole is not None:
            return self.whole.lowest_log_q
        theta = self.draw(TARGET_DRAWS, 0)
        log_q = self.log_r(theta) + priors.log_prob(self.prior, theta)
        return float(torch.quantile(log_q[torch.isfinite(log_q)], RARE))

    # Properties of log r

    @cached_property
    def points(self) -> Tensor:
        """Parameters with mass under p and q, in user units, at which log r is examined, with shape (n, d)."""
        if self.whole is not None:
            return self.whole.points
        if self.region is not None:
            return self.region[:1_000]
        theta = priors.sample(self.prior, 1_000, 2)
        if self.target is not None:  # a narrow q may miss every draw of p
            theta = torch.cat([theta, priors.sample(self.target, 1_000, 2).to(theta)])
        return theta[self.inside(theta)]

    @cached_property
    def same(self) -> bool:
        """Whether q equals p up to a constant."""
        if self.cuts:
            return False
        log_r = self.log_r(self.points).detach()
        return len(log_r) > 0 and float(log_r.max() - log_r.min()) < 1e-4  # rounding in single precision

    @cached_property
    def cuts(self) -> bool:
        """Whether q has no mass in parts of p's support, by draws of p."""
        return not bool(self.inside(priors.sample(self.prior, 1_000, 0)).all())

    @cached_property
    def differentiable(self) -> bool:
        """Whether log r is continuous and autograd gives its gradient."""
        return _has_gradient(self, self.points[-64:], seed=0)

    @cached_property
    def quadratic(self) -> Quadratic:
        """The least-squares quadratic of log r (`reprior.quadratic`)."""
        from reprior.quadratic import find_quadratic

        return find_quadratic(self)

    @cached_property
    def quadratics(self) -> list[Quadratic] | None:
        """The quadratic of log r, or those of its mixture components; None if log r is neither."""
        from reprior.quadratic import find_components

        return [self.quadratic] if self.quadratic.exact else find_components(self)


def _minus(change: PriorChange, part: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """log r minus a part of it, at theta with shape (*, d)."""
    return change.log_r(theta) - part(change.scale.forward(theta))


def _has_gradient(change: PriorChange, theta: Tensor, seed: int) -> bool:
    """Whether autograd's gradient agrees with differences of log r; with a log q from numpy it is that of p alone."""
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
        predicted = (gradient * step).sum(-1)
        fine = torch.isfinite(rise)  # a step may leave the support
        allowed = 0.1 * predicted.abs() + 1e-4 * (1 + value.abs())  # curvature, and rounding in single precision
        local = not bool(fine.any()) or float(((rise - predicted).abs() <= allowed)[fine].float().mean()) > 0.5
    return local and _adds_up(change, theta.detach(), seed)


def _adds_up(change: PriorChange, theta: Tensor, seed: int) -> bool:
    """Whether the gradient integrates to the difference of log r between points; across a jump (a histogram) it fails."""
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
    allowed = 0.1 + 0.1 * pieces.abs().sum(0)  # error of the sum at kinks, and where slopes grow towards an edge
    off = ((pieces.sum(0) - rise).abs() > allowed)[inside].float()
    return len(off) == 0 or float(off.mean()) < DISCONTINUOUS
