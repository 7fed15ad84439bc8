"""How good the bases are: C2ST of base samples against the exact posterior under the training prior.

Also what choices cost: the kinds of noise (`noise_kinds`), and samplers (`samplers`), each on observations of q's marginal
that nothing else uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributions import MultivariateNormal

from reprior import priors
from reprior_bench import metrics
from reprior_bench import tasks
from reprior_bench import DEVELOPMENT_SEED
from reprior_bench.bases import BaseSpec, get_base, mark_of, simulations_of
from reprior.diffusion.denoiser import NOISE_KINDS, NoiseKind
from reprior.diffusion.sampler import Sampler
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings
from reprior.posterior import Posterior
from reprior.io import read_rows, write_rows
from reprior.trainer import train

__all__ = ["base_quality", "collect", "noise_kinds", "samplers"]

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


Job = tuple[dict[str, Any], Callable[[], dict[str, Any]]]  # what it is, and what measures it


def base_quality(specs: Iterable[BaseSpec], folder: Path) -> list[Job]:
    """One job per base; a base that was trained again is measured again."""
    jobs: list[Job] = []
    for s in specs:
        mark = mark_of(s, folder) if s.path(folder).exists() else ""
        key = {"task": s.task, "regime": s.regime, "network": s.network, "preset": s.preset, "base": mark}
        jobs.append((key, partial(_base_row, s, folder)))
    return jobs


def _base_row(spec: BaseSpec, folder: Path) -> dict[str, Any]:
    posterior = get_base(spec, folder)
    values = quality(posterior, spec.task, spec.regime, posterior.sampler, SAMPLES)
    return {
        "base": mark_of(spec, folder),
        **_score(values),
        "worst": round(max(values), 4),
        "samples": SAMPLES,
        "seed": QUALITY_SEED,
        "weights": sum(p.numel() for p in posterior.base.parameters()),
    }


def _score(values: list[float]) -> dict[str, Any]:
    return {"c2st_fast": round(sum(values) / len(values), 4), "observations": len(values)}


def samplers(task: str, regime: str, folder: Path) -> list[Job]:
    """Error against the number of network evaluations, for each kind of sampler."""
    posterior = get_base(BaseSpec(task, regime), folder)
    jobs = []
    for evaluations in (16, 24, 32, 48, 64):
        kinds = (
            ("multistep, ODE", Sampler("multistep", evaluations)),
            ("multistep, SDE", Sampler("multistep", evaluations, eta=1.0)),
            ("heun", Sampler("heun", (evaluations + 1) // 2, rho=7.0)),
            ("euler_maruyama", Sampler("euler_maruyama", evaluations)),
        )
        for name, sampler in kinds:
            key = {"task": task, "regime": regime, "sampler": name, "evaluations": evaluations}
            jobs.append((key, lambda s=sampler: _score(quality(posterior, task, regime, s, 3_000))))
    return jobs


def noise_kinds(steps: int = 3_000, simulations: int = 20_000) -> list[Job]:
    """What scalar, diagonal and full noise cost in base quality and training time, for d = 2, 5, 6 and 20."""
    return [
        (
            {"d": dim, "problem": name, "noise": kind, "steps": steps},
            partial(_noise_row, dim, name, kind, steps, simulations),
        )
        for dim, name in ((2, "two_moons"), (5, "slcp"), (6, "gaussian_linear"), (20, "banana"))
        for kind in NOISE_KINDS
    ]


def _noise_row(dim: int, name: str, kind: NoiseKind, steps: int, simulations: int) -> dict[str, Any]:
    run = replace(Training(), steps=steps, evaluate_every=steps)
    if name == "banana":
        theta, x, prior = _banana(dim, simulations)
    else:
        theta, x = simulations_of(BaseSpec(name, "id", simulations=simulations))
        prior = tasks.get(name).training_prior("id")
    began = time.process_time()
    posterior = train(theta, x, prior, settings=MLPSettings(noise=kind), training=run, progress=False)
    took = time.process_time() - began
    curved = name == "banana"
    values = _banana_quality(posterior, dim) if curved else quality(posterior, name, "id", posterior.sampler, 3_000)
    return {**_score(values), "cpu_seconds": round(took, 1)}


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


def collect(jobs: list[Job], path: Path, tell: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Measures the jobs that the CSV file does not hold yet; each is written as it is done.

    Arguments:
        jobs: what to measure.
        path: the CSV file.
        tell: shows progress.

    Returns: the rows of these jobs.
    """
    torch.set_num_threads(1)
    out = []
    for i, (key, measure) in enumerate(jobs, start=1):
        same = [r for r in read_rows(path) if _match(r, key)]
        if not same:
            same = [{**key, **measure()}]
            of_another_base = {k: v for k, v in key.items() if k != "base"}
            kept = [
                r for r in read_rows(path) if not _match(r, of_another_base)
            ]  # read again: others may have added to it
            write_rows([*kept, *same], path)
        tell(f"[{i}/{len(jobs)}] " + ", ".join(f"{k} {v}" for k, v in same[0].items()))
        out += same
    return out


def _match(row: dict[str, str], key: dict[str, Any]) -> bool:
    return all(row.get(k) == str(v) for k, v in key.items())
