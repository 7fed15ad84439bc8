"""The cases that the verdict is measured on: changes of prior from none to hopeless, methods and bases that are broken.

A case is a task, a regime and a kind. Its kind says what the target prior q is, and for the last ones what is wrong
with the ratio network or with the base; x is drawn from the case's own target prior.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

import reprior
from reprior import priors
from reprior.adapted import AdaptedPosterior
from reprior.errors import InputError
from reprior.methods.learned import RatioSettings
from reprior.networks.fit import Training
from reprior.posterior import Posterior
from reprior_bench import tasks

__all__ = ["KINDS", "PLAN", "Case", "adapted_of", "observation_of", "target_of"]

KINDS: dict[str, str] = {
    "none": "q = p",
    "target": "the task's q",
    "shift1": "p moved by 1 standard deviation",
    "shift2": "p moved by 2",
    "shift6": "p moved by 6",
    "wide": "p at 1.5 times its width",
    "mixture": "two narrow modes",
    "bounded": "uniform, from half a standard deviation below the mean of p to two above",
    "positive": "a Gamma that starts one standard deviation below the mean of p",
    "unchanged": "the task's q, but nothing is done",
    "broken": "the task's q, a ratio network of random weights",
    "short": "the task's q, a ratio network trained for 20 steps",
    "young": "half way from p to the task's q, a base trained for 200 steps",
    "shaken": "the same q, a base whose weights are disturbed by 30 %",
}
# Every kind once or more in each task; the regimes share them, which keeps the measurement short.
PLAN: dict[str, tuple[str, ...]] = {
    "id": ("none", "target", "shift1", "wide", "bounded", "broken", "young"),
    "ood": ("target", "shift2", "shift6", "mixture", "positive", "unchanged", "short", "shaken"),
}
YOUNG = Training(steps=200)
SHAKE = 0.3


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        task: the name of the task.
        regime: "id" or "ood".
        kind: one of `KINDS`.
        seed: seeds the observation.
    """

    task: str
    regime: str
    kind: str
    seed: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind {self.kind!r} is unknown; allowed: {', '.join(KINDS)}")


def moments(prior: Any) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a prior, from 20,000 draws where it is no plain Gaussian."""
    if isinstance(prior, td.MultivariateNormal):
        return prior.loc, prior.covariance_matrix
    if isinstance(prior, td.Independent) and isinstance(prior.base_dist, td.Normal):
        return prior.base_dist.loc, torch.diag(prior.base_dist.variance)
    draws = priors.sample(prior, 20_000, 0)
    return draws.mean(0), torch.cov(draws.T)


def gaussian(mean: Tensor, cov: Tensor) -> Any:
    """A Gaussian, as independent normals where the covariance is diagonal (a simpler change for the methods)."""
    if bool((cov - torch.diag(cov.diagonal())).abs().max() < 1e-7):
        return td.Independent(td.Normal(mean, cov.diagonal().sqrt()), 1)
    return td.MultivariateNormal(mean, (cov + cov.T) / 2)


def target_of(case: Case) -> Any:
    """The target prior of a case."""
    task = tasks.get(case.task)
    p, q = task.training_prior(case.regime), task.target_prior(case.regime)
    mean, cov = moments(p)
    along = torch.linalg.cholesky(cov) @ torch.ones(len(mean)) / math.sqrt(len(mean))
    if case.kind == "none":
        return p
    if case.kind.startswith("shift"):
        return gaussian(mean + float(case.kind.removeprefix("shift")) * along, cov)
    if case.kind in ("young", "shaken"):
        other, wide = moments(q)
        return gaussian((mean + other) / 2, (cov + wide) / 2)
    if case.kind == "wide":
        return gaussian(mean, 2.25 * cov)
    sd = cov.diagonal().sqrt()
    if case.kind == "bounded":
        return td.Independent(td.Uniform(mean - 0.5 * sd, mean + 2 * sd), 1)
    if case.kind == "positive":  # its mode is at the mean of p, where a Gamma of shape 2 and rate 1 / sd has it
        gamma = td.Gamma(torch.full_like(sd, 2.0), 1 / sd)
        return td.Independent(td.TransformedDistribution(gamma, td.AffineTransform(mean - sd, 1.0)), 1)
    if case.kind == "mixture":
        modes = torch.stack([mean + 0.8 * along, mean - 0.8 * along])
        parts = td.MultivariateNormal(modes, (cov / 6).expand(2, -1, -1))
        return td.MixtureSameFamily(td.Categorical(torch.tensor([0.6, 0.4])), parts)
    return q


def adapted_of(case: Case, posterior: Posterior) -> AdaptedPosterior:
    """The adapted posterior of a case; kinds from "unchanged" on are meant to be bad."""
    target = target_of(case)
    if case.kind == "unchanged":
        return reprior.adapt(posterior, target, method="none", seed=case.seed)
    if case.kind in ("broken", "short"):
        settings = RatioSettings(
            plug_in="off", on="base" if case.kind == "broken" else "choose", observations=100, draws=32
        )
        settings = replace(settings, training=replace(settings.training, steps=20, evaluate_every=20))
        adapted = reprior.adapt(posterior, target, method="nre", settings=settings, seed=case.seed)
        return _randomised(adapted, case.seed) if case.kind == "broken" else adapted
    if case.kind == "young":
        posterior = _young(posterior, case.seed)
    if case.kind == "shaken":
        posterior = _shaken(posterior, case.seed)
    return reprior.adapt(posterior, target, seed=case.seed)


def _randomised(adapted: AdaptedPosterior, seed: int) -> AdaptedPosterior:
    """The same learned method with random weights in the last layer of its network."""
    method: Any = copy.copy(adapted.method)
    method.model = copy.deepcopy(method.model)
    weight = method.model.network.out.weight
    weight.data = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    return replace(adapted, method=method.because("random weights"))


def _young(posterior: Posterior, seed: int) -> Posterior:
    stored = posterior.simulations
    assert stored is not None
    return reprior.train(stored.theta, stored.x, posterior.prior, training=YOUNG, seed=seed, progress=False)


def _shaken(posterior: Posterior, seed: int) -> Posterior:
    base: Any = copy.deepcopy(posterior.base)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in base.parameters():
            weight.mul_(1 + SHAKE * torch.randn(weight.shape, generator=generator))
    return replace(posterior, base=base)


def observation_of(case: Case) -> Tensor:
    """x of a case, drawn under its own target prior, with shape (m,)."""
    task = tasks.get(case.task)
    for k in range(100):
        theta = priors.sample(target_of(case), 1, case.seed + 1_000 * k + 17).float()
        x = task.simulate(theta, case.seed + 1_000 * k + 18)
        if bool(torch.isfinite(x).all()):
            return x[0]
    raise InputError(f"no finite observation for {case}")
