"""The twist of a log r that is a sum of one-dimensional functions (p and q products of one-dimensional priors).

    log r(theta) = sum_i f_i(theta_i)   gives   log psi(z, s) = sum_i log E[exp f_i(t)],  t ~ N(D_i, V_ii)

with D the denoised mean and V its covariance V_s. Whether log r is such a sum is asked of log r itself, at draws of p and
q: no type of prior is looked for, so lists, scipy's distributions, histograms and a user's own functions count alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Generator, Tensor

from reprior.methods.smc.knots import Knots, find_knots
from reprior.methods.smc.spread import Spread
from reprior.methods.smc.table import Tables, build_tables
from reprior.quadratic import Quadratic

__all__ = ["ProductTwist", "additive", "parts"]

CELLS = {8: 2**15, 10**9: 2**14}  # of the grid of a parameter, for up to so many parameters
OFF = 1e-3  # of its spread: what a sum of one-dimensional functions may be off
MARGIN = 0.3  # of the range of the draws, that the grid goes on at either end
CHOICES = 16  # draws that the last step chooses among
LARGEST = 60.0  # standardised units that a grid goes out to, at most


def parts(log_r: Callable[[Tensor], Tensor], at: Tensor, values: Tensor) -> Tensor:
    """f_i(t) = log r at a point with its i-th entry replaced by t, less log r there.

    Arguments:
        log_r: (n, d) -> (n,).
        at: the point, with shape (d,), where log r is finite.
        values: t, with shape (d, N).

    Returns: with shape (d, N), in double precision.
    """
    rows = []
    for i, t in enumerate(values):
        theta = at.expand(len(t), -1).clone()
        theta[:, i] = t
        rows.append(log_r(theta).double())
    return torch.stack(rows) - log_r(at.unsqueeze(0)).double()


def additive(log_r: Callable[[Tensor], Tensor], points: Tensor) -> Tensor | None:
    """A point about which log r is a sum of one-dimensional functions; None if it is none.

    Arguments:
        log_r: (n, d) -> (n,); -inf where there is no mass.
        points: where it must be, with shape (n, d).
    """
    value = log_r(points).double()
    finite = torch.isfinite(value)
    if not bool(finite.any()):
        return None
    if points.shape[1] == 1:
        return points[finite][0]
    # Two points to look from: about a strange one, a sum may seem to hold.
    inside = points[finite]
    order = (inside - inside.median(0).values).square().sum(1).argsort()
    for at in (inside[order[0]], inside[order[len(order) // 2]]):
        total = parts(log_r, at, points.T).sum(0) + log_r(at.unsqueeze(0)).double()
        if not bool((torch.isfinite(total) == finite).all()):
            return None
        size = value[finite].std(correction=0) + 1e-3
        if float((total - value)[finite].abs().max() / size) > OFF:
            return None
    return inside[order[0]]


class ProductTwist:
    """Tables of every f_i.

    Arguments:
        log_r: standardised parameters, with shape (n, d), to log r, with shape (n,).
        at: what `additive` gave.
        points: standardised draws, with shape (n, d), that the grids are to cover.
        log_p: log p likewise, for the trusted region; None if there is none.
        lowest: the lowest log p of the trusted region.
    """

    def __init__(
        self,
        log_r: Callable[[Tensor], Tensor],
        at: Tensor,
        points: Tensor,
        log_p: Callable[[Tensor], Tensor] | None = None,
        lowest: float = -float("inf"),
    ):
        low, high = points.amin(0).double(), points.amax(0).double()
        more = MARGIN * (high - low).clamp(min=1e-3)
        self.low, self.high = (low - more).clamp(min=-LARGEST), (high + more).clamp(max=LARGEST)
        d = len(at)
        cells = next(count for most, count in CELLS.items() if d <= most)
        place = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
        t = self.low.unsqueeze(1) + (self.high - self.low).unsqueeze(1) * place
        f = parts(log_r, at.double(), t)
        if log_p is not None and lowest > -float("inf"):
            # log p >= lowest needs of each parameter what the best values of the others leave of it.
            g = parts(log_p, at.double(), t)
            best = g.amax(1)
            need = lowest - float(log_p(at.double().unsqueeze(0))) - (best.sum() - best)
            f = torch.where(g >= need.unsqueeze(1), f, -torch.inf)
        self.log_r, self.at, self.taken = log_r, at.double(), None
        self.constant = float(log_r(at.double().unsqueeze(0)))
        self.f, self.t = f.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf), t
        self.tables: Tables = build_tables(self.f, self.low, self.high)

    def covers(self, points: Tensor) -> bool:
        """Whether points, with shape (n, d), lie on the grids."""
        return bool(((points >= self.low) & (points <= self.high)).all())

    def minus(self, part: Quadratic) -> ProductTwist | None:
        """The twist of what a Gaussian part leaves of log r; None if that is no sum."""
        if part.shape == "full":
            return None
        left = copy.copy(self)
        left.taken = part
        left.f = self.f - (part.h.unsqueeze(1) * self.t - 0.5 * part.L.diagonal().unsqueeze(1) * self.t**2)
        left.constant = self.constant - part.c
        left.tables = build_tables(left.f, self.low, self.high)
        return left

    @cached_property
    def knots(self) -> Knots:
        """The functions f_i themselves, where `finish` chooses by them."""
        zero = self.log_r(self.at.unsqueeze(0)).double()

        def f(i: int, t: Tensor) -> Tensor:
            theta = self.at.expand(len(t), -1).clone()
            theta[:, i] = t
            return (self.log_r(theta).double() - zero).nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)

        return find_knots(f, self.low, self.high)

    def finish(self, mean: Tensor, sd: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """The last step, exact in each parameter: theta_0 ~ N(D, V) r, by a choice among some draws of N(D, V).

        What is left of the noise smooths r; without this step, where r has an infinity at an edge, the last weight r / psi has
        no variance to speak of.

        Arguments:
            mean: D, with shape (n, K, d).
            sd: V^1/2, with shape (K, d).
            generator: the source of randomness.

        Returns: theta_0, with shape (n, K, d), and log of (the mean of r over the draws / r at the choice), with shape (n, K).
        """
        flat = mean.double().flatten(0, 1)
        width = sd.expand(mean.shape).flatten(0, 1)
        strata = torch.arange(CHOICES, dtype=torch.float64)
        u = (strata + torch.rand(*flat.shape, CHOICES, generator=generator, dtype=torch.float64)) / CHOICES
        t = flat.unsqueeze(-1) + width.unsqueeze(-1) * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
        f = torch.stack([self.knots(t[..., j]) for j in range(CHOICES)], -1)
        if self.taken is not None:
            h, bend = self.taken.h.unsqueeze(-1), self.taken.L.diagonal().unsqueeze(-1)
            f = f - (h * t - 0.5 * bend * t.square())
        top = f.amax(-1, keepdim=True).clamp(min=-1e300)
        total = (f - top).exp().cumsum(-1)
        point = total[..., -1:] * torch.rand(total[..., -1:].shape, generator=generator, dtype=torch.float64)
        pick = torch.searchsorted(total, point).clamp(max=CHOICES - 1)
        mean_r = top[..., 0] + (total[..., -1] / CHOICES).log()
        ratio = (mean_r - f.gather(-1, pick)[..., 0]).nan_to_num(nan=-torch.inf).sum(-1)
        return t.gather(-1, pick)[..., 0].reshape(mean.shape), ratio.reshape(mean.shape[:-1])

    def bind(self, spread: Spread) -> Callable[[Tensor, float, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """The twist for K observations, from (denoised mean, noise, z)."""
        d = len(self.low)

        def twist(mean: Tensor, s: float, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            sd = spread.cov(s).diagonal(dim1=1, dim2=2)[:, :d].sqrt()
            value, slope, curve = self.tables(mean[..., :d], sd)
            return value.sum(-1, dtype=torch.float64) + self.constant, slope, curve

        def finish(mean: Tensor, s: float, generator: Generator) -> tuple[Tensor, Tensor]:
            return self.finish(mean[..., :d], spread.cov(s).diagonal(dim1=1, dim2=2)[:, :d].sqrt(), generator)

        twist.finish = finish  # pyright: ignore[reportFunctionMemberAccess]
        return twist
