"""How good the bases are: C2ST of base samples against the exact posterior under the training prior.

Also what choices cost: the kinds of noise (`NoiseJob`) and samplers (`SamplerJob`), each on observations of q's marginal
that nothing else uses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import reprior
from reprior import priors
from reprior.diffusion.denoiser import NOISE_KINDS, NoiseKind
from reprior.diffusion.sampler import Sampler
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings
from reprior.posterior import Posterior
from reprior_bench import DEVELOPMENT_SEED, metrics, tasks
from reprior_bench.bases import BASE_SEED, BaseSpec, get_base
from reprior_bench.job import Job
from reprior_bench.tasks import BENCHMARK, REGIMES

__all__ = ["BaseJob", "NoiseJob", "SamplerJob", "base_jobs", "noise_jobs", "sampler_jobs"]

OBSERVATIONS = 5
QUALITY_SEED = DEVELOPMENT_SEED + 500  # used for these tables only


def quality(
    posterior: Posterior, task_name: str, regime: str, sampler: Sampler, samples: int, seed: int
) -> dict[str, Any]:
    """c2st_fast at each observation, and its mean."""
    task = tasks.get(task_name)
    _, x = task.observations(regime, OBSERVATIONS, seed=seed)
    values = []
    for k in range(OBSERVATIONS):
        theta = posterior.sample((samples,), x=x[k], seed=k, sampler=sampler)
        exact = task.reference(x[k], samples, regime, prior="training", seed=k)
        values.append(metrics.c2st_fast(exact, theta))
    return _mean(values)


def _mean(values: list[float]) -> dict[str, Any]:
    return {"c2st_fast": round(sum(values) / len(values), 4), "observations": len(values), "values": values}


@dataclass(frozen=True)
class BaseJob(Job):
    """The quality of a base; attributes as in `BaseSpec`, and `seed`, which seeds the observations."""

    part = "bases"

    task: str
    regime: str
    network: str = "mlp"
    preset: str = "best"
    seed: int = QUALITY_SEED

    @property
    def base(self) -> BaseSpec:
        return BaseSpec(self.task, self.regime, self.network, self.preset)

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        posterior, samples = get_base(self.base, bases), 5_000
        found = quality(posterior, self.task, self.regime, posterior.sampler, samples, self.seed)
        weights = sum(p.numel() for p in posterior.base.parameters())
        return found | {"worst": round(max(found["values"]), 4), "samples": samples, "weights": weights}


def base_jobs(network: str = "mlp", preset: str = "best") -> list[BaseJob]:
    """Every base of a network and preset."""
    return [BaseJob(task, regime, network, preset) for task in BENCHMARK for regime in REGIMES]


@dataclass(frozen=True)
class SamplerJob(Job):
    """The error of one sampler on Two Moons ID, whose narrow crescents need the most evaluations.

    Attributes:
        sampler: one of `SAMPLERS`.
        evaluations: network evaluations for each sample.
        seed: seeds the observations.
    """

    part = "samplers"

    sampler: str
    evaluations: int
    seed: int = QUALITY_SEED

    @property
    def base(self) -> BaseSpec:
        return BaseSpec("two_moons", "id")

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        sampler = SAMPLERS[self.sampler](self.evaluations)
        return quality(get_base(self.base, bases), self.base.task, self.base.regime, sampler, 3_000, self.seed)


SAMPLERS = {
    "multistep, ODE": lambda n: Sampler("multistep", n),
    "multistep, SDE": lambda n: Sampler("multistep", n, eta=1.0),
    "heun": lambda n: Sampler("heun", (n + 1) // 2, rho=7.0),
    "euler_maruyama": lambda n: Sampler("euler_maruyama", n),
}


def sampler_jobs() -> list[SamplerJob]:
    """Each kind of sampler at several numbers of evaluations."""
    return [SamplerJob(sampler, n) for n in (16, 24, 32, 48, 64) for sampler in SAMPLERS]


@dataclass(frozen=True)
class NoiseJob(Job):
    """What a kind of noise costs in base quality and training time.

    Attributes:
        d: the number of parameters.
        problem: a task, or "banana".
        noise: "scalar", "diagonal" or "full".
        steps: training steps, on 20,000 simulations.
        seed: seeds the observations.
    """

    part = "noise"

    d: int
    problem: str
    noise: NoiseKind
    steps: int = 3_000
    seed: int = QUALITY_SEED

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        count = 20_000
        if self.problem == "banana":
            theta, x, prior = _banana(self.d, count)
        else:
            task = tasks.get(self.problem)
            prior = task.training_prior("id")
            theta = priors.sample(prior, count, BASE_SEED)
            x = task.simulate(theta, seed=BASE_SEED + 1)
        training = replace(Training(), steps=self.steps, evaluate_every=self.steps)
        began = time.process_time()
        posterior = reprior.train(
            theta, x, prior, settings=MLPSettings(noise=self.noise), training=training, progress=False
        )
        took = round(time.process_time() - began, 1)
        if self.problem == "banana":
            found = _banana_quality(posterior, self.d)
        else:
            found = quality(posterior, self.problem, "id", posterior.sampler, 3_000, self.seed)
        return found | {"cpu_seconds": took}


def noise_jobs() -> list[NoiseJob]:
    """Scalar, diagonal and full noise for d = 2, 5, 6 and 20."""
    problems = ((2, "two_moons"), (5, "slcp"), (6, "gaussian_linear"), (20, "banana"))
    return [NoiseJob(d, problem, kind) for d, problem in problems for kind in NOISE_KINDS]


BANANA_NOISE = 0.5


def _banana(dim: int, n: int) -> tuple[Tensor, Tensor, MultivariateNormal]:
    """theta ~ N(0, I), x = theta + 0.3 theta_1^2 + noise: curved, and exact by quadrature in theta_1."""
    prior = MultivariateNormal(torch.zeros(dim), torch.eye(dim))
    theta = priors.sample(prior, n, 0)
    noise = torch.randn(n, dim, generator=torch.Generator().manual_seed(1))
    return theta, _bend(theta) + BANANA_NOISE * noise, prior


def _bend(theta: Tensor) -> Tensor:
    return theta + 0.3 * theta[:, :1] ** 2


def _banana_quality(posterior: Posterior, dim: int) -> dict[str, Any]:
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
        values.append(metrics.c2st_fast(exact, posterior.sample((3_000,), x=x, seed=k)))
    return _mean(values)
