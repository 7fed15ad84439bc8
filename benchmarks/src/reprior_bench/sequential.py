"""How error grows with the number of observations: sequential updates against exact posteriors.

theta is drawn from the training prior p, and N independent observations of it are simulated. After each, the samples of a
method of `reprior.update` are measured against exact draws of p(theta | x_1..n) (`Task.joint_reference`). A run that was
killed goes on from its last finished observation.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import reprior
from reprior import priors
from reprior.diffusion.sampler import PAPER_SAMPLER
from reprior.errors import InputError
from reprior.methods.learned import RatioSettings
from reprior.networks.fit import Training
from reprior.sequential import AccumulateSettings, RatioUpdateSettings
from reprior_bench import EVALUATION_SEED, metrics, tasks
from reprior_bench.bases import BaseSpec, get_base
from reprior_bench.job import Job
from reprior_bench.methods.priorguide_mc import MonteCarloSettings
from reprior_bench.store import Table
from reprior_bench.tasks import BENCHMARK

__all__ = ["METRICS", "TASKS", "WAYS", "SequentialJob", "draw", "summarise"]

METRICS = ("mean_error", "sd_error", "c2st_fast")
TASKS = tuple(name for name in BENCHMARK if tasks.get(name).has_joint_reference)


@dataclass(frozen=True)
class Way:
    """A way to update.

    Attributes:
        method: the method of `reprior.update`.
        settings: its settings.
        samples: draws of each posterior.
    """

    method: str
    settings: Any
    samples: int = 5_000


# The learned ways have trainings that one core finishes in half a minute an observation.
_SMALL = Training(steps=800, batch=512, learning_rate=1e-3, weight_decay=1e-4, ema=0.99, evaluate_every=100, patience=4)
_SMALL_RATIO = RatioSettings(
    observations=10,
    draws=2_000,
    training=Training(
        steps=400, batch=1_024, learning_rate=2e-3, ema=0.98, evaluate_every=50, patience=4, validation=0.1
    ),
)
WAYS: dict[str, Way] = {
    "accumulate": Way("accumulate", AccumulateSettings()),
    "ratio": Way("ratio", RatioUpdateSettings(ratio=_SMALL, settings=_SMALL_RATIO)),
    "priorguide_mc": Way(
        "ratio",
        RatioUpdateSettings(
            ratio=_SMALL, method="priorguide_mc", settings=MonteCarloSettings(draws=32), sampler=PAPER_SAMPLER
        ),
        samples=1_000,
    ),
}


@dataclass(frozen=True)
class SequentialJob(Job):
    """A method on one theta.

    Attributes:
        task: a task that has a posterior of several observations.
        method: one of `WAYS`.
        truth: the number of the theta; it seeds theta, the observations and the run.
        observations: the number N of observations.
        regime: "id" or "ood": which training prior.
        seed: seeds everything, with `truth`.
    """

    part = "sequential"

    task: str
    method: str
    truth: int
    observations: int = 10
    regime: str = "id"
    seed: int = EVALUATION_SEED

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task {self.task!r} has no exact posterior here; allowed: {', '.join(TASKS)}")
        if self.method not in WAYS:
            raise InputError(f"method {self.method!r} is unknown; allowed: {', '.join(WAYS)}")

    def data(self) -> tuple[Tensor, Tensor]:
        """theta, with shape (d,), and x, with shape (N, m)."""
        task = tasks.get(self.task)
        theta = priors.sample(task.training_prior(self.regime), self.truth + 1, self.seed)[-1:]
        return theta[0], task.simulate(theta.repeat(self.observations, 1), self.seed + 1 + self.truth)

    @property
    def base(self) -> BaseSpec:
        return BaseSpec(self.task, self.regime)

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        posterior = get_base(self.base, bases)
        theta, x = self.data()
        way = WAYS[self.method]
        began, n = time.process_time(), way.samples
        updates = reprior.update(
            posterior,
            x,
            method=way.method,
            settings=way.settings,
            samples=n,
            folder=cache / "sequential" / self.name,
            seed=self.truth,
            progress=False,
        )
        seconds = time.process_time() - began
        rows = []
        for one in updates:
            seen = x[: one.n]
            exact = tasks.get(self.task).joint_reference(seen, n, self.regime, seed=self.seed + one.n)
            rows.append({"n": one.n, "verdict": one.verdict, **errors_of(one.samples, exact)})
        return {"theta": theta.tolist(), "samples": n, "cpu_seconds": seconds, "rows": rows}


def errors_of(samples: Tensor, exact: Tensor) -> dict[str, float]:
    """Errors of mean and sd (`reprior_bench.metrics.moment_errors`), and c2st_fast."""
    mean_error, sd_error = metrics.moment_errors(exact, samples)
    return {"mean_error": mean_error, "sd_error": sd_error, "c2st_fast": metrics.c2st_fast(exact, samples)}


def summarise(folder: str | Path, observations: int, seed: int = EVALUATION_SEED) -> list[dict[str, Any]]:
    """Mean and largest value over theta of each metric, for each task, method and n.

    Arguments:
        folder: where the table of records is.
        observations: the number N of observations.
        seed: the seed of theta and the observations; records of other seeds are left out.
    """
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    samples: dict[tuple[str, str], int] = {}
    commits: dict[tuple[str, str], set[str]] = {}
    for record in Table(folder, SequentialJob.part).records().values():
        job = record["job"]
        if (job["observations"], job["seed"]) != (observations, seed):
            continue
        place = job["task"], job["method"]
        samples[place] = record["samples"]
        commits.setdefault(place, set()).add(record["commit"])
        for row in record["rows"]:
            groups.setdefault((*place, row["n"]), []).append(row)
    rows = []
    for (task, method, n), found in sorted(groups.items()):
        row: dict[str, Any] = {"task": task, "method": method, "n": n, "truths": len(found)}
        for metric in METRICS:
            values = [one[metric] for one in found]
            row |= {metric: round(math.fsum(values) / len(values), 4), f"worst_{metric}": round(max(values), 4)}
        row["ok"] = sum(one["verdict"] == "ok" for one in found)
        row |= {"samples": samples[task, method], "commit": " ".join(sorted(commits[task, method]))}
        rows.append(row)
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> Path:
    """Each metric against n, mean and worst over theta, one row of panels for each task; a dotted line at the goal.

    Arguments:
        rows: as `summarise` gives them.
        path: the file to write.
    """
    import matplotlib.pyplot as plt

    names = {"mean_error": "error of the mean / sd", "sd_error": "relative error of the sd", "c2st_fast": "C2ST (fast)"}
    goals = {"mean_error": 0.2, "c2st_fast": 0.6}
    shown = list(dict.fromkeys(row["task"] for row in rows))
    fig, axes = plt.subplots(len(shown), 3, figsize=(10, 3 * len(shown)), squeeze=False, sharex=True)
    for i, task in enumerate(shown):
        for metric, ax in zip(METRICS, axes[i], strict=True):
            for method in dict.fromkeys(row["method"] for row in rows if row["task"] == task):
                mine = [row for row in rows if (row["task"], row["method"]) == (task, method)]
                n = [row["n"] for row in mine]
                (line,) = ax.plot(n, [row[metric] for row in mine], "o-", ms=3, label=method)
                ax.plot(n, [row[f"worst_{metric}"] for row in mine], "--", lw=0.8, color=line.get_color())
            if metric in goals:
                ax.axhline(goals[metric], color="grey", ls=":")
            below = "observations n" if i == len(shown) - 1 else ""
            ax.set(ylabel=names[metric], title=tasks.get(task).title, xlabel=below)
    lines, labels = axes[0, 0].get_legend_handles_labels()
    worst, goal = axes[0, 0].plot([], [], "k--", lw=0.8)[0], axes[0, 0].plot([], [], ":", color="grey")[0]
    axes[0, 0].legend([*lines, worst, goal], [*labels, "worst of the thetas", "goal"], fontsize=8)
    fig.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=120)
    plt.close(fig)
    return path
