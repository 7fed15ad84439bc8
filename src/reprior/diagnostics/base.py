"""Is the base posterior itself good at this observation? Two checks that need no exact reference.

A base that has learned too little is still calibrated: it answers with the posterior given what it can tell apart, which
is too wide, and ranks do not show it. What does:

**Simulations behind the answer.** A linear regression of theta on x, with Gaussian residuals of covariance C, needs few
simulations. What the base says beyond it at x is

    I(x) = E_p(theta|x)[ log p(theta | x) - log N(theta; A x + b, C) ]   (nats)

and only a share exp(-I) of the N stored simulations lies where this answer is. To see a shape in d dimensions some are
needed in each cell of a grid of three cells a side: N exp(-I) / 3^d (with d at most 6 here) is how many there are.

**Left-over information.** theta minus the denoised mean must be unpredictable from x. A ridge regression of that residual
on hinge functions of the entries of x (and of their sorted values, for a series), fitted on some stored simulations
and judged on others, finds what the base left in the data; at x it gives the shift the base misses.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reprior.posterior import Posterior
from reprior.standardizer import Standardizer

__all__ = ["LeftOver", "find_left_over", "simulations_behind"]

GRID_DIM = 6  # beyond, no number of simulations fills a grid, and none is asked for
DENSITY_DRAWS = 150
DENSITY_STEPS = 16
ROWS = 20_000  # stored simulations that the regressions use
NOISE = 2.0  # of the noisy parameters, standardised: the prior's own scale, where x matters most
ENTRIES = 128  # of x; longer series are averaged in blocks
SERIES = 16  # more entries than this are also looked at in sorted order
HINGES = (0.1, 0.3, 0.5, 0.7, 0.9)
RIDGES = (10.0, 100.0, 1_000.0, 10_000.0)  # for 15,000 rows
LEAST = 0.02  # held-out R^2 that is told from nothing


def simulations_behind(posterior: Posterior, x: Tensor, base: Tensor) -> float:
    """N exp(-I(x)) / 3^d: how many stored simulations there are in each cell of a grid over the base posterior at x.

    Arguments:
        posterior: the base posterior, with its simulations.
        x: the observation, with shape (1, m).
        base: base draws at x, with shape (n, d).
    """
    simulations = posterior.simulations
    assert simulations is not None
    scale = posterior.scales.theta
    theta = scale.forward(simulations.theta[:ROWS]).double()
    design = _with_one(_entries(posterior, simulations.x[:ROWS]))
    gram = design.T @ design + 1e-3 * len(design) * torch.eye(design.shape[1], dtype=torch.float64)
    slope = torch.linalg.solve(gram, design.T @ theta)
    left = theta - design @ slope
    cov = left.T @ left / len(left) + 1e-9 * torch.eye(theta.shape[1], dtype=torch.float64)
    draws = base[:DENSITY_DRAWS]
    here = _with_one(_entries(posterior, x)) @ slope
    guess = torch.distributions.MultivariateNormal(here, cov).log_prob(scale.forward(draws).double())
    guess = guess - scale.scale.double().log().sum()
    gain = posterior.log_prob(draws, x, DENSITY_STEPS).double() - guess
    gain = gain[torch.isfinite(gain)]
    if len(gain) == 0:
        return math.nan
    return len(simulations) * math.exp(-max(0.0, float(gain.mean()))) / 3 ** min(posterior.dim, GRID_DIM)


@dataclass(frozen=True)
class LeftOver:
    """What x still says about the residuals of a base.

    Attributes:
        r2: the held-out R^2 of the regression for each parameter, with shape (d,).
        weights: its coefficients for residuals of unit variance, zero where nothing was found, with shape (F, d).
        knots: where the hinges are, with shape (H, k).
        sorted_scale: the standardisation of the sorted entries.
    """

    r2: Tensor
    weights: Tensor
    knots: Tensor
    sorted_scale: Standardizer

    def shift(self, posterior: Posterior, x: Tensor) -> Tensor:
        """The shift that the base misses at x, in posterior standard deviations, with shape (d,).

        Arguments:
            posterior: the base posterior.
            x: the observation, with shape (1, m).
        """
        return (_features(_entries(posterior, x), self.knots, self.sorted_scale) @ self.weights)[0]


def find_left_over(posterior: Posterior, seed: int) -> LeftOver:
    """Regresses the residuals of the base on x.

    Arguments:
        posterior: the base posterior, with its simulations.
        seed: draws the rows and the noise.
    """
    simulations = posterior.simulations
    assert simulations is not None
    # The seed is moved: benchmark parameters are drawn with small seeds, and noise must not repeat them.
    generator = torch.Generator().manual_seed(seed + 715_517)
    rows = torch.randperm(len(simulations), generator=generator)[:ROWS]
    x = simulations.x[rows]
    left = _residuals(posterior, simulations.theta[rows], x, generator)
    left = left / left.std(0).clamp(min=1e-12)
    entries = _entries(posterior, x)
    cut = 3 * len(rows) // 4
    knots = torch.quantile(entries[:cut], torch.tensor(HINGES, dtype=torch.float64), dim=0)
    ordered = Standardizer.fit(entries[:cut].sort(1).values)
    features = _features(entries, knots, ordered)
    fit, held = features[:cut], features[cut:]
    gram, right = fit.T @ fit, fit.T @ left[:cut]
    eye = torch.eye(len(gram), dtype=torch.float64)
    target = left[cut:]
    total = (target - target.mean(0)).square().sum(0).clamp(min=1e-12)
    r2 = torch.full((left.shape[1],), -math.inf, dtype=torch.float64)
    weights = torch.zeros_like(right)
    for ridge in RIDGES:
        found = torch.linalg.solve(gram + ridge * cut / 15_000 * eye, right)
        score = 1 - (target - held @ found).square().sum(0) / total
        better = score > r2
        r2, weights = torch.where(better, score, r2), torch.where(better, found, weights)
    weights = torch.where(r2 > LEAST, weights, torch.zeros_like(weights))
    return LeftOver(r2, weights, knots, ordered)


@torch.no_grad()
def _residuals(posterior: Posterior, theta: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
    """theta minus its denoised mean at noise NOISE, standardised, in double precision, with shape (n, d)."""
    clean = posterior.scales.theta.forward(theta)
    s = min(NOISE, posterior.base.s_max)
    noisy = clean + s * torch.randn(clean.shape, generator=generator)
    parts = []
    for start in range(0, len(x), 5_000):
        some = slice(start, start + 5_000)
        denoiser = posterior.condition(x[some])
        z = noisy[some].unsqueeze(0).to(posterior.device)
        parts.append(denoiser.mean(z, z.new_tensor(s))[0].cpu())
    return (clean - torch.cat(parts)).double()


def _entries(posterior: Posterior, x: Tensor) -> Tensor:
    """Standardised entries of x, at most ENTRIES of them, zero where missing, in double precision."""
    u = posterior.scales.x.forward(x).nan_to_num(nan=0.0).double()
    if u.shape[1] <= ENTRIES:
        return u
    blocks = torch.linspace(0, u.shape[1], ENTRIES + 1).long()
    return torch.stack([u[:, a:b].mean(1) for a, b in itertools.pairwise(blocks.tolist())], 1)


def _features(entries: Tensor, knots: Tensor, ordered: Standardizer) -> Tensor:
    parts = [entries, *((entries - knot).clamp(min=0) for knot in knots)]
    if entries.shape[1] > SERIES:
        rank = ordered.forward(entries.sort(1).values)
        parts += [rank, rank.square()]
    return _with_one(torch.cat(parts, dim=1))


def _with_one(columns: Tensor) -> Tensor:
    return torch.cat([torch.ones(len(columns), 1, dtype=columns.dtype), columns], dim=1)
