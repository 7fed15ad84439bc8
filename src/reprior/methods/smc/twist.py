"""Which twist a change of prior gets.

    log r = sum of one-dimensional functions     tables, `ProductTwist`
    log r Gaussian, or a mixture of Gaussians    closed form, `MixtureTwist`
    any other log r                              Gaussian parts fitted to draws of q, times a Monte Carlo average

None needs a gradient of log r. A twist need not be right: what it gets wrong costs particles.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior import priors
from reprior.change import PriorChange
from reprior.methods.smc.mixture import MixtureTwist
from reprior.methods.smc.prior_draws import draws_of
from reprior.methods.smc.product import ProductTwist, additive
from reprior.methods.smc.region import Region
from reprior.quadratic import Quadratic

__all__ = ["fitted_parts", "make_twist"]

POINTS = 4_000  # draws of p, and of q, that a twist is built from
TRIED = 600  # of them, where it is asked whether log r is a sum
PARTS = 16  # Gaussian parts at most
BROAD, RARE = 2.0, 0.05  # how much wider than q one more part is, and its weight: it bounds r against the parts
FITTED = 2_500  # draws of q that a mixture is fitted to
SMALLEST = 100  # draws of q that a fit needs


def make_twist(
    region: Region, lowest: float, draws: int, seed: int, more: Tensor | None = None
) -> list[tuple[ProductTwist | MixtureTwist, str]]:
    """The twists to try, the cheapest first, each with what it is, in a few words.

    Arguments:
        region: the change of prior with its trusted region.
        lowest: the lowest log p of that region.
        draws: of a Monte Carlo average.
        seed: seeds the draws that it is built from.
        more: standardised points that it is to cover too, with shape (n, d).
    """
    change, d = region.change, len(region.change.scale.shift)
    exact = change.quadratics if change.target is not None and change.region is None else None
    if exact is not None and d > 1 and any(q.shape == "full" or len(exact) > 1 for q in exact):
        return [(MixtureTwist(exact), "in closed form")]
    of_p, of_q = _points(change, seed)
    points = torch.cat([of_p, of_q])
    if change.region is None:
        about = torch.cat([of_p[: TRIED // 2], of_q[:TRIED]])

        def log_r(theta: Tensor) -> Tensor:
            return change(theta).double()

        at = additive(log_r, about)
        if at is not None:
            held = not region.shifted and additive(change.log_p, about) is not None
            cover = points if more is None else torch.cat([points, more.double()])
            bounds = (change.log_p, lowest) if held else (None, -math.inf)
            return [(ProductTwist(log_r, at, cover, *bounds), "by one-dimensional tables")]
    parts = fitted_parts(change, of_p, of_q, seed)
    held = MixtureTwist(parts, _Held(region, lowest), draws)
    return [
        (MixtureTwist(parts), f"by {_count(parts)}"),
        (held, f"by {_count(parts)} and a Monte Carlo average of the rest"),
    ]


def _count(parts: list[Quadratic]) -> str:
    return "a Gaussian part of r" if len(parts) == 1 else f"{len(parts)} Gaussian parts of r"


class _Held:
    """log r within the trusted region, as a function of theta alone."""

    def __init__(self, region: Region, lowest: float):
        self.region, self.lowest = region, lowest

    def __call__(self, theta: Tensor) -> Tensor:
        return self.region.log_r(theta, self.lowest)


def _points(change: PriorChange, seed: int) -> tuple[Tensor, Tensor]:
    """Standardised draws of p and of q, in double precision."""
    if change.region is not None:
        theta = change.region
        log_r = change.log_r(theta)
        index = torch.multinomial(
            torch.softmax(log_r.double(), 0), POINTS, replacement=True, generator=torch.Generator().manual_seed(seed)
        )
        of_p, of_q = theta, theta[index]
    else:
        of_p = priors.sample(change.prior, POINTS, seed)
        if change.target is None:
            z = change.scale.forward(of_p)
            return z.double(), draws_of(change, change.log_p, z, seed + 1).double()
        of_q = priors.sample(change.target, POINTS, seed + 1).to(of_p)
        of_q = of_q[change.inside(of_q)]
    return change.scale.forward(of_p).double(), change.scale.forward(of_q).double()


def fitted_parts(change: PriorChange, of_p: Tensor, of_q: Tensor, seed: int) -> list[Quadratic]:
    """Gaussian parts of r, from a Gaussian mixture fitted to draws of q (the number of parts by BIC) and a Gaussian one of p."""
    from sklearn.mixture import GaussianMixture

    d = of_p.shape[1]
    unique = of_q.unique(dim=0)
    if len(unique) < max(SMALLEST, 3 * d):
        zero = torch.zeros(d, d, dtype=torch.float64)
        return [Quadratic(zero, zero[0], 0.0, math.inf)]
    counts = [c for c in (1, 2, 4, 8, PARTS) if c == 1 or len(unique) > 40 * c * d]
    fits = [
        GaussianMixture(c, covariance_type="full", reg_covar=1e-6, random_state=seed % 2**31, tol=5e-3).fit(
            of_q[:FITTED].numpy()
        )
        for c in counts
    ]
    best: Any = fits[int(np.argmin([fit.bic(of_q.numpy()) for fit in fits]))]
    # log p as a quadratic where q is: exact for a Gaussian p, none for a flat one.
    log_p = change.log_p(of_q).double()
    finite = torch.isfinite(log_p)
    i, j = torch.triu_indices(d, d)
    z = of_q[finite]
    design = torch.cat([z[:, i] * z[:, j], z, torch.ones(len(z), 1, dtype=torch.float64)], 1)
    solution = torch.linalg.lstsq(design, log_p[finite].unsqueeze(1), driver="gelsd").solution[:, 0]
    upper = torch.zeros(d, d, dtype=torch.float64)
    upper[i, j] = solution[: len(i)]
    of_prior = Quadratic(-(upper + upper.T), solution[len(i) : len(i) + d], float(solution[-1]), 0.0)
    parts = []
    shape = np.atleast_2d(np.cov(of_q.numpy().T)) * BROAD**2
    weights = [*(best.weights_ * (1 - RARE)), RARE]
    for weight, mean, cov in zip(
        weights, [*best.means_, of_q.mean(0).numpy()], [*best.covariances_, shape], strict=True
    ):
        m, precision = torch.as_tensor(mean), torch.linalg.inv(torch.as_tensor(cov))
        c = math.log(weight) + 0.5 * float(torch.logdet(precision)) - 0.5 * d * math.log(2 * math.pi)
        part = Quadratic(
            precision - of_prior.L,
            precision @ m - of_prior.h,
            c - 0.5 * float(m @ precision @ m) - of_prior.c,
            math.inf,
        )
        values, axes = torch.linalg.eigh(part.L)  # nowhere wider than p: a fit does not know tails
        if float(values.min()) < 0:
            L = axes @ torch.diag(values.clamp(min=0)) @ axes.T
            # The same value and slope at the middle of the part.
            h = part.h - part.L @ m + L @ m
            middle = float(part(m) - Quadratic(L, h, 0.0, 0.0)(m))
            part = replace(part, L=L, h=h, c=middle)
        parts.append(part)
    return parts
