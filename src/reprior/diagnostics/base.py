"""Is the base posterior itself good at this observation? Two checks that need no exact reference.

A base that has learned too little can still be calibrated: its posterior uses only a part of the information in x, so it is
too wide, and ranks do not show this. Two checks do:

**Local simulations.** A linear regression of theta on x, with Gaussian residuals of covariance C, needs few simulations. The
information in the base posterior at x beyond that regression is

    I(x) = E_p(theta|x)[ log p(theta | x) - log N(theta; A x + b, C) ]   (nats)

so a fraction exp(-I) of the N stored simulations lies where the base posterior is. To learn a shape in d dimensions, some
of them must lie in each cell of a grid with three cells per dimension. N exp(-I) / 3^d is their number per cell (d counts
as 6 at most).

**Residual information.** If the base uses all information in x, theta minus its denoised mean cannot be predicted from x. A
ridge regression of that residual on hinge functions of the entries of x (and of the sorted entries, for a series) is
fitted to some stored simulations and tested on others. Where it predicts the residual, the base has missed information.
At the given x it estimates the shift that the base misses.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reprior.diagnostics.case import Case
from reprior.diagnostics.check import Check, Figure, missing
from reprior.diagnostics.draws import Scene
from reprior.errors import InputError
from reprior.posterior import Posterior
from reprior.standardizer import Standardizer

__all__ = ["LocalSimulations", "Residual", "ResidualInformation", "fit_residual", "local_simulations"]

GROUP = "The base posterior"
FEWEST = 1_000  # stored simulations: with fewer, both regressions mostly fit noise
GRID_DIM = 6  # largest d in 3^d: no number of simulations fills a grid in more dimensions
DENSITY_DRAWS = 150  # draws whose average gives I(x), to about 0.1 nats
DENSITY_STEPS = 16  # Runge-Kutta steps of a log-density: its error is far below that of the average
ROWS = 20_000  # stored simulations that a regression uses: more would not change it
NOISE = 2.0  # prior standard deviations: at such noise z says little, so the denoised mean depends mostly on x
ENTRIES = 128  # blocks over which a longer x is averaged: the regression would have too many columns otherwise
SERIES = 16  # an x with more entries than this may be a series, and the regression gets its sorted entries, too
HINGES = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of an entry of x at which the slope of the regression may change
RIDGES = (10.0, 100.0, 1_000.0, 10_000.0)  # ridge penalties that are tried, for 15,000 rows
SMALLEST_R2 = 0.02  # held-out R^2: below it the regression has found nothing


class LocalSimulations(Check):
    """Stored simulations in each cell of a grid over the base posterior at x."""

    name = "local_simulations"
    title = "Local simulations"
    meaning = (
        "Number of stored simulations where the base posterior is, beyond what a linear fit explains, per cell of a grid "
        "of three cells per dimension. Few: the posterior is narrower than the simulations can resolve."
    )
    group = GROUP
    bad = "low"
    caution = 6.0
    stop = 1.0

    def look(self, case: Case) -> Figure:
        if why := _too_few(case):
            return missing(why)
        largest = case.settings.density_dim
        if case.posterior.dim > largest:
            return missing(f"densities take long beyond {largest} parameters (density_dim of the settings)")
        try:
            few = min(local_simulations(case.posterior, scene.x, scene.base) for scene in case.scenes)
        except InputError as error:  # an sbi posterior whose density is not normalised
            return missing(str(error))
        if math.isnan(few):
            return Figure(few, "the base gives no finite log-density at its own samples", outcome="stop")
        return Figure(few)


class ResidualInformation(Check):
    """The shift that the base misses at x, in standard deviations of the adapted posterior."""

    name = "residual_information"
    title = "Residual information in the data"
    meaning = (
        "How far a regression on the stored simulations would still move the posterior at x, in standard deviations of "
        "the posterior."
    )
    group = GROUP
    bad = "high"
    caution = 0.5
    stop = 1.0

    def look(self, case: Case) -> Figure:
        if why := _too_few(case):
            return missing(why)
        if not case.denoises:
            return missing("this base is no diffusion: it has no denoised mean")
        if not all(scene.usable for scene in case.scenes):
            return missing("there are too few adapted samples")
        residual = fit_residual(case.posterior, case.seed)
        return self.at_worst(case, lambda scene: _missed(residual, case.posterior, scene))


def _too_few(case: Case) -> str:
    """Why there are not enough stored simulations; empty if there are."""
    if case.simulations is None:
        return "no stored simulations are attached"
    count = len(case.simulations)
    return f"{count} stored simulations are too few to judge by" if count < FEWEST else ""


def _missed(residual: Residual, posterior: Posterior, scene: Scene) -> Figure:
    """The largest missed shift, in standard deviations of the adapted posterior, and its parameter."""
    # An error in the slope of the log-likelihood shifts a posterior in proportion to its variance. In units of its own
    # standard deviation the shift goes with that standard deviation, so it is smaller for the narrower posterior.
    narrower = (scene.adapted.std(0) / scene.base.std(0).clamp(min=1e-12)).clamp(max=2).double()
    shift = (residual.shift(posterior, scene.x) * narrower).abs()
    i = int(shift.argmax())
    note = f"In {posterior.parameters[i]}; held-out R² {float(residual.r2.max()):.2g}." if shift[i] > 0 else ""
    return Figure(float(shift[i]), note)


def local_simulations(posterior: Posterior, x: Tensor, base: Tensor) -> float:
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
    rest = theta - design @ slope
    cov = rest.T @ rest / len(rest) + 1e-9 * torch.eye(theta.shape[1], dtype=torch.float64)
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
class Residual:
    """A regression of theta minus its denoised mean on x.

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


def fit_residual(posterior: Posterior, seed: int) -> Residual:
    """Regresses the residuals of the base on x.

    Arguments:
        posterior: the base posterior, with its simulations.
        seed: draws the rows and the noise.
    """
    simulations = posterior.simulations
    assert simulations is not None
    # An offset of the seed: benchmark parameters are drawn with small seeds, and the noise must not repeat them.
    generator = torch.Generator().manual_seed(seed + 715_517)
    rows = torch.randperm(len(simulations), generator=generator)[:ROWS]
    x = simulations.x[rows]
    residual = _residuals(posterior, simulations.theta[rows], x, generator)
    residual = residual / residual.std(0).clamp(min=1e-12)
    entries = _entries(posterior, x)
    cut = 3 * len(rows) // 4
    knots = torch.quantile(entries[:cut], torch.tensor(HINGES, dtype=torch.float64), dim=0)
    ordered = Standardizer.fit(entries[:cut].sort(1).values)
    features = _features(entries, knots, ordered)
    fit, held = features[:cut], features[cut:]
    gram, right = fit.T @ fit, fit.T @ residual[:cut]
    eye = torch.eye(len(gram), dtype=torch.float64)
    target = residual[cut:]
    total = (target - target.mean(0)).square().sum(0).clamp(min=1e-12)
    r2 = torch.full((residual.shape[1],), -math.inf, dtype=torch.float64)
    weights = torch.zeros_like(right)
    for ridge in RIDGES:
        found = torch.linalg.solve(gram + ridge * cut / 15_000 * eye, right)
        score = 1 - (target - held @ found).square().sum(0) / total
        better = score > r2
        r2, weights = torch.where(better, score, r2), torch.where(better, found, weights)
    weights = torch.where(r2 > SMALLEST_R2, weights, torch.zeros_like(weights))
    return Residual(r2, weights, knots, ordered)


@torch.no_grad()
def _residuals(posterior: Posterior, theta: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
    """theta minus its denoised mean at noise NOISE, standardised, in double precision, with shape (n, d)."""
    clean = posterior.scales.theta.forward(theta)
    s = min(NOISE, posterior.base.s_max)
    noisy = clean + s * torch.randn(clean.shape, generator=generator)
    parts = []
    for start in range(0, len(x), 5_000):  # rows at once, which bounds the memory
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
    """A constant, the entries, their hinges, and for a series the sorted entries and their squares, with shape (n, F)."""
    parts = [entries, *((entries - knot).clamp(min=0) for knot in knots)]
    if entries.shape[1] > SERIES:
        rank = ordered.forward(entries.sort(1).values)
        parts += [rank, rank.square()]
    return _with_one(torch.cat(parts, dim=1))


def _with_one(columns: Tensor) -> Tensor:
    return torch.cat([torch.ones(len(columns), 1, dtype=columns.dtype), columns], dim=1)
