"""The posterior part: a method on a task, in one run, against the exact posterior under the target prior."""

from __future__ import annotations

import time
from abc import ABC
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import reprior
from reprior import io
from reprior.adapted import AdaptedPosterior
from reprior.errors import InputError, RefusedError
from reprior.methods import registered
from reprior_bench import EVALUATION_SEED, metrics, tasks
from reprior_bench.bases import BaseSpec, get_base
from reprior_bench.job import Job
from reprior_bench.presets import UNCHANGED, settings_of
from reprior_bench.store import Record

__all__ = ["METRICS", "MethodJob", "PosteriorJob", "reference_of", "run_seed"]

METRICS = ("c2st", "mmd", "sliced_w2", "rmse", "c2st_fast")  # the first four are the paper's
RUN_SEEDS = 1_000  # seeds that a run has for itself


@dataclass(frozen=True)
class MethodJob(Job, ABC):
    """A method on a task, in one run, over all observations.

    Attributes:
        task: the name of the task.
        regime: "id" or "ood".
        method: the method; "base" is no change.
        preset: "best", "paper" or "quick".
        run: the number of the run; it seeds the change of prior and the samples.
        observations: the number of observations.
        samples: samples per observation.
        seed: seeds the observations.
    """

    more: ClassVar[tuple[str, ...]] = (UNCHANGED,)  # what may stand for a method beside those of the library

    task: str
    regime: str
    method: str
    preset: str = "best"
    run: int = 0
    observations: int = 10
    samples: int = 5_000
    seed: int = EVALUATION_SEED

    def __post_init__(self) -> None:
        allowed = (*self.more, *(m for m in registered() if m != "none"))  # no change has one name here, "base"
        if self.method not in allowed:
            raise InputError(f"method {self.method!r} is unknown; allowed: {', '.join(allowed)}")
        if not 1 <= self.observations < RUN_SEEDS or self.samples < 100 or self.seed < 0:
            raise InputError(
                f"a job needs 1 to {RUN_SEEDS - 1} observations, samples >= 100 and seed >= 0; got {self.observations}, "
                f"{self.samples} and {self.seed}"
            )

    @staticmethod
    def network_of(preset: str) -> str:
        """The network of the base under a preset."""
        raise NotImplementedError

    @property
    def base(self) -> BaseSpec | None:
        return BaseSpec(self.task, self.regime, self.network_of(self.preset), self.preset)

    def adapt(self, bases: Path, cache: Path, observed: Tensor | None = None) -> AdaptedPosterior:
        """The base with the change of prior that the job asks for."""
        assert self.base is not None
        return reprior.adapt(
            get_base(self.base, bases),
            tasks.get(self.task).target_prior(self.regime),
            method="none" if self.method == UNCHANGED else self.method,
            settings=settings_of(self.method, self.preset, self.samples),
            seed=run_seed(self.run),
            observed=observed,
            folder=cache,
        )


@dataclass(frozen=True)
class PosteriorJob(MethodJob):
    """Samples of q(theta | x) by a method, measured against exact ones; attributes as in `MethodJob`, and

    Attributes:
        forest: whether the random-forest C2ST is measured, which takes ten times as long as all the rest.
    """

    part = "posterior"

    forest: bool = field(default=True, compare=False)

    @staticmethod
    def network_of(preset: str) -> str:
        return "simformer" if preset == "paper" else "mlp"

    @property
    def key(self) -> dict[str, Any]:
        return {name: value for name, value in super().key.items() if name != "forest"}

    def done(self, record: Record | None, bases: Path) -> bool:
        measured = record is not None and (not self.forest or all("c2st" in row for row in record["rows"]))
        return measured and super().done(record, bases)

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        theta_star, x = tasks.get(self.task).observations(self.regime, self.observations, seed=self.seed)
        began = time.monotonic()
        adapted = self.adapt(bases, cache)
        adapt_seconds = time.monotonic() - began
        rows = []
        for k in range(self.observations):
            began = time.monotonic()
            seed = run_seed(self.run) + k
            samples, info = adapted.sample_batched((self.samples,), x=x[k : k + 1], seed=seed, return_info=True)
            row = {"observation": k, "seconds": time.monotonic() - began, "ess": info.relative_ess[0]}
            row |= {"failed": info.failed[0]} if info.failed else {}
            exact = reference_of(self.task, self.regime, self.seed, k, self.samples, x[k], cache)
            rows.append(row | distances(samples[:, 0], exact, theta_star[k], self.forest))
        if all("failed" in row for row in rows):
            raise RefusedError(rows[0]["failed"])
        made = {"why": adapted.method.why, "chosen": adapted.method.name, "adapt_seconds": adapt_seconds}
        return {**made, "rows": rows}


def run_seed(run: int) -> int:
    """The seed of a run: of the change of prior; k above it, of the samples for observation k.

    It is the same for all methods (common random numbers), so that their differences are paired in the samples too.
    """
    return RUN_SEEDS * run + 1


def reference_of(task: str, regime: str, seed: int, k: int, samples: int, x: Tensor, cache: Path) -> Tensor:
    """Exact samples under the target prior for observation k, with shape (samples, d), kept in the cache."""
    name = f"{task}-{regime}-seed{seed}-{k}-{samples}-{io.fingerprint(x)}"
    path = cache / f"{name}.safetensors"
    if path.exists():
        return io.read(path, "reference").tensors["theta"]
    theta = tasks.get(task).reference(x, samples, regime, seed=seed + k)
    io.write(path, "reference", {"theta": theta}, {"name": name})
    return theta


def distances(samples: Tensor, exact: Tensor, theta_star: Tensor, forest: bool) -> dict[str, float]:
    """The metrics of one observation; NaN where the method could not draw, or its sampler diverged."""
    names = METRICS if forest else tuple(name for name in METRICS if name != "c2st")
    if not bool(torch.isfinite(samples).all()):
        return dict.fromkeys(names, float("nan"))
    values = {
        "mmd": metrics.mmd(exact, samples),
        "sliced_w2": metrics.sliced_w2(exact, samples),
        "rmse": metrics.rmse(samples, theta_star),
        "c2st_fast": metrics.c2st_fast(exact, samples),
    }
    return {**values, "c2st": metrics.c2st(exact, samples)} if forest else values
