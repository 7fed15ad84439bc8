"""The quadratic part of a change of prior.

Between Gaussian priors log r is exactly -theta' L theta / 2 + h' theta + c. `find_quadratic` recovers L and h from
values of log r alone (least squares on draws of p and of q), and says how far log r is from quadratic. All in
standardised units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as td

from reprior import priors
from reprior.change import PriorChange

__all__ = ["Quadratic", "expressible_part", "find_components", "find_quadratic", "local_part"]

TOLERANCE = 2e-3  # largest error of the fit, as a fraction of the range of log r; a Gaussian change has about 1e-5
NATS = 0.05  # largest error of the fit where q has its mass; one narrow parameter makes the range of log r huge
ROUNDING = 1e-4  # in units of p's own curvature (1): entries of L below this are rounding errors
LIGHT = 1e-6  # points with less than this fraction of the largest weight are left out of a fit
NEAR = 20.0  # nats: q "has its mass" where log q, or log r, is within this of its largest value


@dataclass(frozen=True)
class Quadratic:
    """log r(theta) = -theta' L theta / 2 + h' theta + c.

    Attributes:
        L: the curvature, with shape (d, d), in double precision.
        h: the slope at zero, with shape (d,).
        c: the constant.
        misfit: the largest error on the fitted points, as a fraction of the spread of log r; or, if that is larger, the
            largest error where q is, in units of NATS / TOLERANCE.
    """

    L: Tensor
    h: Tensor
    c: float
    misfit: float

    @property
    def exact(self) -> bool:
        """Whether log r is quadratic."""
        return self.misfit < TOLERANCE

    @property
    def shape(self) -> str:
        """The kind of noise that transport needs for L: "scalar" (a multiple of I), "diagonal" or "full"."""
        diagonal = self.L.diagonal()
        # Each entry in units of its own two parameters: a very narrow parameter must not hide the correlation of others.
        size = torch.sqrt(1 + diagonal.abs())
        off = (self.L - torch.diag(diagonal)).abs() / torch.outer(size, size)
        if off.max() > ROUNDING:
            return "full"
        spread = diagonal.max() - diagonal.min()
        return "diagonal" if spread > ROUNDING * self.L.abs().max().clamp(min=1.0) else "scalar"

    @property
    def curved(self) -> bool:
        """Whether L differs from zero. L = 0 is a pure shift of the mean, for which S' = S."""
        return bool(self.L.abs().max() > ROUNDING)

    def __call__(self, z: Tensor) -> Tensor:
        """The quadratic at standardised parameters, with shape (*, D); the first d entries count."""
        d = len(self.h)
        theta, L, h = z[..., :d], self.L.to(z), self.h.to(z)
        return -0.5 * ((theta @ L) * theta).sum(-1) + theta @ h + self.c

    def scaled(self, power: float) -> Quadratic:
        """The quadratic of r^power."""
        return Quadratic(self.L * power, self.h * power, self.c * power, self.misfit)


def find_quadratic(change: PriorChange, seed: int = 0, points: int = 2_000) -> Quadratic:
    """The least-squares quadratic of log r.

    Arguments:
        change: the change of prior.
        seed: draws the points.
        points: how many.
    """
    return _fit(change, _points(change, seed, points))


def find_components(change: PriorChange, seed: int = 0, points: int = 2_000) -> list[Quadratic] | None:
    """The quadratics of a mixture q = sum_k w_k N_k over a Gaussian p, each with log w_k in its constant.

    Returns: one quadratic per component; or None where q is no Gaussian mixture or p is not Gaussian.
    """
    mixture = change.target
    if not isinstance(mixture, td.MixtureSameFamily):
        return None
    logits = torch.log_softmax(mixture.mixture_distribution.logits, -1)
    z = _points(change, seed, points)
    theta = change.scale.inverse(_precise(change, z))
    support = mixture.component_distribution.support
    if support is not None and not bool(support.check(theta.unsqueeze(-2)).all()):
        return None  # bounded components
    log_p = priors.log_prob(change.prior, theta)
    each = mixture.component_distribution.log_prob(theta.unsqueeze(-2)) + logits - log_p.unsqueeze(-1)
    fits = [_least_squares(z, each[:, k], log_p) for k in range(each.shape[-1])]
    return fits if all(f.exact for f in fits) else None


def expressible_part(change: PriorChange, noise: str, seed: int = 0, points: int = 2_000) -> Quadratic:
    """The part of log r that transport can take over on a base of this noise: quadratic, and nowhere wider than p.

    The curvature is that of the least-squares quadratic, reduced to what the noise can express (one number, one per
    parameter, or a matrix) and to its positive part. The slope is then fitted to log r minus the curvature term.
    """
    z = _points(change, seed, points)
    whole = _fit(change, z)
    L = _narrowing(whole.L, noise)
    with torch.no_grad():
        remainder = change(_precise(change, z)).double() + 0.5 * ((z.double() @ L) * z.double()).sum(-1)
    design = torch.cat([z.double(), torch.ones(len(z), 1, dtype=torch.float64)], dim=1)
    solution = torch.linalg.lstsq(design, remainder.unsqueeze(1)).solution[:, 0]
    return Quadratic(L, solution[:-1], float(solution[-1]), whole.misfit)


def local_part(z: Tensor, log_r: Tensor, weight: Tensor, noise: str) -> Quadratic | None:
    """As `expressible_part`, but fitted to weighted points: the part of log r near them that transport can take over.

    Arguments:
        z: standardised parameters, with shape (n, d).
        log_r: log r there, with shape (n,); -inf counts as no point.
        weight: the weight of each point in the fit, with shape (n,).
        noise: the noise the base was trained with.

    Returns: the quadratic; None if there are too few points.
    """
    counts = torch.isfinite(log_r) & (weight > LIGHT * weight.max())
    z, value, weight = z[counts].double(), log_r[counts].double(), weight[counts].double()
    n, d = z.shape
    i, j = torch.triu_indices(d, d)
    if n < 4 * (len(i) + d + 1):
        return None
    weight = weight / weight.sum()
    centre = weight @ z
    size = (weight @ (z - centre).square()).sqrt().clamp(min=1e-9)
    u, root = (z - centre) / size, weight.sqrt().unsqueeze(1)
    ones = torch.ones(n, 1, dtype=torch.float64)

    def solve(design: Tensor, target: Tensor) -> Tensor:
        return torch.linalg.lstsq(root * design, root * target.unsqueeze(1), driver="gelsd").solution[:, 0]

    upper = torch.zeros(d, d, dtype=torch.float64)
    upper[i, j] = solve(torch.cat([u[:, i] * u[:, j], u, ones], dim=1), value)[: len(i)]
    L = _narrowing(-(upper + upper.T) / torch.outer(size, size), noise)
    remainder = value + 0.5 * (((z - centre) @ L) * (z - centre)).sum(-1)
    slope = solve(torch.cat([u, ones], dim=1), remainder)
    h = slope[:-1] / size + L @ centre
    c = float(slope[-1] - (slope[:-1] / size) @ centre - 0.5 * centre @ L @ centre)
    return Quadratic(L, h, c, float("inf"))


def _narrowing(L: Tensor, noise: str) -> Tensor:
    """The positive part of a curvature (where q is narrower than p) that a base with this noise can express."""
    if noise == "full":
        values, frame = torch.linalg.eigh(L)
        return frame @ torch.diag(values.clamp(min=0)) @ frame.T
    levels = L.diagonal().clamp(min=0)
    return torch.diag(levels.min().expand(len(levels)) if noise == "scalar" else levels)


def _points(change: PriorChange, seed: int, points: int) -> Tensor:
    if change.region is not None:
        return change.scale.forward(change.region)
    theta = priors.sample(change.prior, points, seed)
    if change.target is not None:  # a narrow q with bounds may miss every draw of p
        theta = torch.cat([theta, priors.sample(change.target, points, seed).to(theta)])
    return change.scale.forward(theta[change.inside(theta)])


def _fit(change: PriorChange, z: Tensor) -> Quadratic:
    with torch.no_grad():
        points = _precise(change, z)
        return _least_squares(z, change(points), change.log_p(points))


def _precise(change: PriorChange, z: Tensor) -> Tensor:
    # torch's own distributions work in double precision; a user's object (a network) may accept single precision only.
    plain = all(priors.to_dict(prior) is not None for prior in (change.prior, change.target))
    return z.double() if plain else z


def _least_squares(z: Tensor, value: Tensor, log_p: Tensor) -> Quadratic:
    z, value, log_p = z.double(), value.double(), log_p.double()
    n, d = z.shape
    columns = (d + 1) * (d + 2) // 2
    if n < 2 * columns:  # bounded support with too few points inside for a fit
        zero = torch.zeros(d, d, dtype=torch.float64)
        return Quadratic(zero, zero[0], 0.0, float("inf"))
    i, j = torch.triu_indices(d, d)
    design = torch.cat([z[:, i] * z[:, j], z, torch.ones(n, 1, dtype=torch.float64)], dim=1)
    solution = torch.linalg.lstsq(design, value.unsqueeze(1)).solution[:, 0]
    spread = (value.max() - value.min()).clamp(min=1e-9)
    error = (design @ solution - value).abs()
    # If q has heavy tails, log r is largest at its furthest draws, and least squares fits these at the cost of the others.
    log_q = value + log_p
    where = (value > value.max() - NEAR) | (log_q > log_q.max() - NEAR)
    near = error[where].max() * TOLERANCE / NATS
    misfit = float(torch.maximum(error.max() / spread, near))
    upper = torch.zeros(d, d, dtype=torch.float64)
    upper[i, j] = solution[: len(i)]
    return Quadratic(-(upper + upper.T), solution[len(i) : len(i) + d], float(solution[-1]), misfit)
