"""How good the bases are: C2ST of base samples against the exact posterior under the training prior.

Also what choices cost: the kinds of noise (`noise_kinds`), and samplers (`samplers`), each on observations of q's marginal
that nothing else uses.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributions import MultivariateNormal

from reprior import metrics, priors, tasks
from reprior.benchmark.bases import DEVELOPMENT_SEED, BaseSpec, get_base, simulations_of
from reprior.diffusion.sampler import Sampler
from reprior.diffusion.training import Training
from reprior.networks.mlp import MLPSettings
from reprior.posterior import Posterior
from reprior.trainer import train

__all__ = ["base_quality", "noise_kinds", "samplers", "write_rows"]

OBSERVATIONS = 5
SAMPLES = 5_000
QUALITY_SEED = DEVELOPMENT_SEED + 500  # used for this table only


def quality(posterior: Posterior, task_name: str, regime: str, sampler: Sampler, samples: int) -> list[float]:
    """c2st_fast of each observation."""
    task = tasks.get(task_name)
    _, x = task.observations(regime, OBSERVATIONS, seed=QUALITY_SEED)
    out = []
    for k in range(OBSERVATIONS):
        theta = posterior.sample((samples,), x[k], seed=k, sampler=sampler)
        exact = task.reference(x[k], samples, regime, prior="training", seed=k)
        out.append(metrics.c2st_fast(exact, theta))
    return out


def base_quality(specs: Iterable[BaseSpec], folder: Path) -> list[dict[str, Any]]:
    """One row per base."""
    torch.set_num_threads(1)
    rows = []
    for spec in specs:
        posterior = get_base(spec, folder)
        values = quality(posterior, spec.task, spec.regime, posterior.sampler, SAMPLES)
        rows.append(
            {
                "task": spec.task,
                "regime": spec.regime,
                "network": spec.network,
                "preset": spec.preset,
                "c2st_fast": round(sum(values) / len(values), 4),
                "worst": round(max(values), 4),
                "observations": len(values),
                "samples": SAMPLES,
                "seed": QUALITY_SEED,
                "weights": sum(p.numel() for p in posterior.base.parameters()),
            }
        )
    return rows


def samplers(task: str, regime: str, folder: Path) -> list[dict[str, Any]]:
    """Error against the number of network evaluations, for each kind of sampler."""
    torch.set_num_threads(1)
    posterior = get_base(BaseSpec(task, regime), folder)
    rows = []
    for evaluations in (16, 24, 32, 48, 64):
        kinds = (
            ("multistep, ODE", Sampler("multistep", evaluations)),
            ("multistep, SDE", Sampler("multistep", evaluations, eta=1.0)),
            ("heun", Sampler("heun", (evaluations + 1) // 2, rho=7.0)),
            ("euler_maruyama", Sampler("euler_maruyama", evaluations)),
        )
        for name, sampler in kinds:
            values = quality(posterior, task, regime, sampler, 3_000)
            row = {"task": task, "regime": regime, "sampler": name, "evaluations": evaluations}
            rows.append({**row, "c2st_fast": round(sum(values) / len(values), 4), "observations": len(values)})
    return rows


def noise_kinds(steps: int = 3_000, simulations: int = 20_000) -> list[dict[str, Any]]:
    """What scalar, diagonal and full noise cost in base quality and training time, for d = 2, 5, 6 and 20."""
    torch.set_num_threads(1)
    rows = []
    for dim, name in ((2, "two_moons"), (5, "slcp"), (6, "gaussian_linear"), (20, "banana")):
        for kind in ("scalar", "diagonal", "full"):
            run = replace(Training(), steps=steps, evaluate_every=steps)
            settings = MLPSettings(noise=kind)
            began = time.monotonic()
            if name == "banana":
                theta, x, prior = _banana(dim, simulations)
            else:
                spec = BaseSpec(name, "id", simulations=simulations)
                (theta, x), prior = simulations_of(spec), tasks.get(name).training_prior("id")
            posterior = train(theta, x, prior, settings=settings, training=run, progress=False)
            took = time.monotonic() - began
            if name == "banana":
                values = _banana_quality(posterior, dim)
            else:
                values = quality(posterior, name, "id", posterior.sampler, 3_000)
            row = {"d": dim, "problem": name, "noise": kind, "steps": steps, "seconds": round(took, 1)}
            rows.append({**row, "c2st_fast": round(sum(values) / len(values), 4), "observations": len(values)})
    return rows


def _banana(dim: int, n: int):
    """theta ~ N(0, I), x = theta + 0.3 theta_1^2 + noise: curved, and exact by importance sampling."""
    prior = MultivariateNormal(torch.zeros(dim), torch.eye(dim))
    theta = priors.sample(prior, n, 0)
    noise = torch.randn(n, dim, generator=torch.Generator().manual_seed(1))
    return theta, _bend(theta) + BANANA_NOISE * noise, prior


BANANA_NOISE = 0.5


def _bend(theta: torch.Tensor) -> torch.Tensor:
    return theta + 0.3 * theta[:, :1] ** 2


def _banana_quality(posterior: Posterior, dim: int) -> list[float]:
    # Given theta_1 the rest is Gaussian, so the exact posterior is a grid in theta_1 and draws of the rest.
    values = []
    generator = torch.Generator().manual_seed(2)
    for k in range(OBSERVATIONS):
        truth = torch.randn(1, dim, generator=generator)
        x = (_bend(truth) + BANANA_NOISE * torch.randn(1, dim, generator=generator))[0]
        grid = torch.linspace(-6, 6, 6_001)
        bend = 0.3 * grid**2
        var = 1 + BANANA_NOISE**2
        rest = -((x[1:] - bend.unsqueeze(1)) ** 2).sum(1) / (2 * var)
        log_w = -(grid**2) / 2 - (x[0] - grid - bend) ** 2 / (2 * BANANA_NOISE**2) + rest
        pick = torch.multinomial(torch.softmax(log_w.double(), 0), 3_000, replacement=True, generator=generator)
        first = grid[pick] + (torch.rand(3_000, generator=generator) - 0.5) * float(grid[1] - grid[0])
        mean = (x[1:] - 0.3 * first.unsqueeze(1) ** 2) / var
        sd = BANANA_NOISE / var**0.5
        others = mean + sd * torch.randn(3_000, dim - 1, generator=generator)
        exact = torch.cat([first.unsqueeze(1), others], 1)
        values.append(metrics.c2st_fast(exact, posterior.sample((3_000,), x, seed=k)))
    return values


def write_rows(rows: list[dict[str, Any]], path: Path) -> Path:
    """Writes rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
