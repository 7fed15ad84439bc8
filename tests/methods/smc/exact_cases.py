"""Exact cases for the sampler: theta ~ N(0, I), x = theta + N(0, c I), with the exact denoiser; marginals by quadrature."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from exact import GaussianBase
from torch import Tensor
from torch import distributions as td

from reprior import priors
from reprior.diffusion.sampler import Sampler
from reprior.methods.method import Drawn, Problem
from reprior.methods.smc import SMC, SMCSettings
from reprior.standardizer import Standardizer
from reprior.target import make_change

C = 0.3  # variance of x given theta

FAMILIES = {
    "laplace": lambda o: td.Laplace(0.3 * o, 0.4 * o),
    "half_normal": lambda o: td.HalfNormal(1.0 * o),
    "box": lambda o: td.Uniform(-0.5 * o, 1.0 * o),
    "student": lambda o: td.StudentT(3 * o, 0.2 * o, 0.4 * o),
    "log_normal": lambda o: td.LogNormal(-0.5 * o, 0.7 * o),
    "beta": lambda o: td.Beta(2 * o, 3 * o),
    "beta_edges": lambda o: td.Beta(0.5 * o, 0.5 * o),
    "logistic": lambda o: td.TransformedDistribution(
        td.Uniform(0 * o, o), [td.SigmoidTransform().inv, td.AffineTransform(0.2 * o, 0.3 * o)]
    ),
    "gamma_edge": lambda o: td.Gamma(0.5 * o, 1 * o),
    "gamma": lambda o: td.Gamma(2 * o, 3 * o),
    "normal": lambda o: td.Normal(0.8 * o, 0.4 * o),
    "horseshoe": lambda o: td.MixtureSameFamily(
        td.Categorical(torch.tensor([0.7, 0.3]).expand(len(o), 2)),
        td.Normal(torch.zeros(len(o), 2), torch.tensor([0.05, 1.0]).expand(len(o), 2)),
    ),
    "far_modes": lambda o: td.MixtureSameFamily(
        td.Categorical(torch.tensor([0.5, 0.5]).expand(len(o), 2)),
        td.Normal(torch.tensor([-0.9, 1.3]).expand(len(o), 2), torch.tensor([0.2, 0.2]).expand(len(o), 2)),
    ),
}


def target(name: str, d: int) -> td.Distribution:
    return td.Independent(FAMILIES[name](torch.ones(d)), 1, validate_args=False)


def observation(d: int) -> Tensor:
    return torch.linspace(-0.5, 1.0, d) if d > 1 else torch.tensor([0.6])


def problem(q, d: int) -> Problem:
    prior = td.Independent(td.Normal(torch.zeros(d), torch.ones(d)), 1)
    scale = Standardizer(torch.zeros(d), torch.ones(d))
    return Problem(SimpleNamespace(prior=prior), make_change(prior, q, scale, 0, accept_outside=True))  # pyright: ignore


def denoiser(x: Tensor):
    x = x if x.ndim == 2 else x.unsqueeze(0)
    return GaussianBase(torch.eye(x.shape[1]), C).condition(x)


def drawn(
    q, d: int, n: int = 4_000, seed: int = 1, settings: SMCSettings | None = None, x: Tensor | None = None
) -> Drawn:
    made = SMC(problem(q, d), settings)
    there = denoiser(observation(d) if x is None else x)
    return made.draw(there, n, Sampler(), torch.Generator().manual_seed(seed))


def marginal(name: str, x: float) -> tuple[float, float, float, Tensor, Tensor]:
    """Mean, standard deviation and log E_p(theta|x)[r] of one parameter by quadrature; the grid and the distribution on it."""
    t = torch.linspace(-8, 8, 200_001, dtype=torch.float64) + 3.1e-5  # no node on an infinity
    log_w = td.Normal(x / (1 + C), math.sqrt(C / (1 + C))).log_prob(t) - td.Normal(0.0, 1.0).log_prob(t)
    log_w = (log_w + priors.log_prob(target(name, 1), t.unsqueeze(1))).nan_to_num(nan=-math.inf)
    top = log_w.max()
    w = (log_w - top).exp()
    log_z = float(top + (w.sum() * (t[1] - t[0])).log())
    w = w / w.sum()
    mean = float((w * t).sum())
    return mean, math.sqrt(float((w * (t - mean) ** 2).sum())), log_z, t, w.cumsum(0)


def errors(name: str, theta: Tensor, x: Tensor) -> tuple[float, float, float, float]:
    """Worst error of a mean in sd, worst |ratio of sd - 1|, worst marginal total variation, and the exact log Z."""
    mean_off, sd_off, variation, log_z = 0.0, 0.0, 0.0, 0.0
    for i in range(theta.shape[1]):
        column = theta[:, i].double()
        mean, sd, one, t, cdf = marginal(name, float(x[i]))
        log_z += one
        mean_off = max(mean_off, abs(float(column.mean()) - mean) / sd)
        sd_off = max(sd_off, abs(float(column.std()) / sd - 1))
        edges = t[torch.searchsorted(cdf, torch.linspace(0, 1, 31, dtype=torch.float64)[1:-1])]
        share = torch.bincount(torch.bucketize(column.contiguous(), edges), minlength=30) / len(column)
        variation = max(variation, float((share - 1 / 30).abs().sum() / 2))
    return mean_off, sd_off, variation, log_z
