"""How error grows with the number of observations: sequential updates against exact posteriors.

theta is drawn from the training prior p, and N independent observations of it are simulated. After each, the samples of a method
are measured against exact draws of p(theta | x_1..n):

- Gaussian Linear: closed form, covariance (P^-1 + n/0.1 I)^-1;
- OUP: the grid of its task, on the summed log-likelihood.

A cell is one method on one theta. It is one JSON file, written when it is done; until then the run itself goes on from its last
finished observation (`reprior.update` with a folder).
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior import priors
from reprior_bench import metrics
from reprior_bench import tasks
from reprior_bench import EVALUATION_SEED
from reprior_bench.bases import BaseSpec, get_base
from reprior_bench.records import commit, read_record, write_once
from reprior.networks.fit import Training
from reprior.errors import InputError
from reprior.methods.learned.guidance import RatioSettings
from reprior_bench.methods.priorguide import MonteCarloSettings
from reprior.sequential.settings import AccumulateSettings, MonteCarloUpdateSettings, RatioUpdateSettings
from reprior.sequential.update import update
from reprior_bench.tasks.base import log_density
from reprior_bench.tasks.gaussian_linear import gaussian_components
from reprior_bench.tasks.grid import grid_proposal
from reprior_bench.tasks.rejection import rejection_sample

__all__ = ["METRICS", "SETTINGS", "SequentialCell", "exact_draws", "figure", "summarise"]

METRICS = ("mean_error", "sd_error", "c2st_fast")
TASKS = ("gaussian_linear", "oup")
_SMALL = Training(steps=800, batch=512, learning_rate=1e-3, weight_decay=1e-4, ema=0.99, evaluate_every=100, patience=4)
# The learned methods with trainings that one core finishes in half a minute an observation.
SETTINGS: dict[str, Any] = {
    "accumulate": AccumulateSettings(),
    "ratio": RatioUpdateSettings(
        ratio=_SMALL,
        guidance=RatioSettings(
            observations=10,
            draws=2_000,
            training=Training(
                steps=400, batch=1_024, learning_rate=2e-3, ema=0.98, evaluate_every=50, patience=4, validation=0.1
            ),
        ),
    ),
    "priorguide_mc": MonteCarloUpdateSettings(ratio=_SMALL, guidance=MonteCarloSettings(draws=32)),
}
SAMPLES = {"accumulate": 5_000, "ratio": 5_000, "priorguide_mc": 1_000}


@dataclass(frozen=True)
class SequentialCell:
    """What is run.

    Attributes:
        task: "gaussian_linear" or "oup".
        method: a method of `reprior.update`.
        truth: the number of the theta; it seeds theta, the observations and the run.
        observations: the number N of observations.
        regime: "id" or "ood": which training prior.
        seed: seeds everything, with `truth`.
    """

    task: str
    method: str
    truth: int
    observations: int = 10
    regime: str = "id"
    seed: int = EVALUATION_SEED

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task {self.task!r} has no exact posterior here; allowed: {', '.join(TASKS)}")
        if self.method not in SETTINGS:
            raise InputError(f"method {self.method!r} is unknown; allowed: {', '.join(SETTINGS)}")

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.task}-{self.regime}-{self.method}-truth{self.truth}-{self.observations}-seed{self.seed}"

    def data(self) -> tuple[Tensor, Tensor]:
        """theta, with shape (d,), and x, with shape (N, m)."""
        task = tasks.get(self.task)
        theta = priors.sample(task.training_prior(self.regime), self.truth + 1, self.seed)[-1:]
        return theta[0], task.simulate(theta.repeat(self.observations, 1), self.seed + 1 + self.truth)

    @property
    def preset(self) -> str:
        """Settings are this library's."""
        return "best"

    @property
    def base(self) -> BaseSpec:
        """The base it stands on."""
        return BaseSpec(self.task, self.regime)

    def path(self, folder: Path) -> Path:
        """The file of its result."""
        return folder / "sequential" / f"{self.name}.json"

    def done(self, folder: Path) -> bool:
        """Whether its result is there."""
        return self.path(folder).exists()

    def execute(self, folder: Path, bases: Path) -> Path:
        """Runs it unless it is done, and returns the path of its result."""
        path = self.path(folder)
        if path.exists():
            return path
        posterior = get_base(self.base, bases, progress=False)
        theta, x = self.data()
        began, n = time.process_time(), SAMPLES[self.method]
        updates = update(
            posterior,
            x,
            method=self.method,
            settings=SETTINGS[self.method],
            samples=n,
            folder=folder / "cache" / "sequential" / self.name,
            seed=self.truth,
            progress=False,
        )
        seconds = time.process_time() - began
        rows = []
        for one in updates:
            exact = exact_draws(self.task, self.regime, x[: one.n], n, self.seed + one.n)
            rows.append({"n": one.n, "verdict": one.verdict, **measure(one.samples, exact)})
        result = {"cell": asdict(self), "theta": theta.tolist(), "samples": n, "seconds": seconds, "commit": commit()}
        write_once(path, {**result, "rows": rows})
        return path


def exact_draws(task_name: str, regime: str, x: Tensor, n: int, seed: int) -> Tensor:
    """Exact draws of p(theta | x_1..k), with shape (n, d), for x with shape (k, m)."""
    task, rng = tasks.get(task_name), np.random.default_rng(seed)
    prior = task.training_prior(regime)
    if task_name == "gaussian_linear":
        parts = gaussian_components(prior)
        assert parts is not None
        mean, cov = _gaussian(parts[1][0], parts[2][0], x.double())
        noise = torch.from_numpy(rng.standard_normal((n, len(mean))))
        return (mean + noise @ torch.linalg.cholesky(cov).T).float()

    def log_f(theta: Tensor) -> Tensor:
        each = [task._log_likelihood(theta, row) for row in x.double()]
        return log_density(prior, theta) + torch.stack(each).sum(0)

    pool = priors.sample(prior, 16_384, seed).double()
    low, high = pool.amin(0), pool.amax(0)
    return rejection_sample([grid_proposal(log_f, low, high)], n, rng).float()


def _gaussian(centre: Tensor, cov: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    inverse, eye = torch.linalg.inv(cov), torch.eye(len(cov), dtype=torch.float64)
    after = torch.linalg.inv(inverse + len(x) / 0.1 * eye)
    return after @ (inverse @ centre + x.sum(0) / 0.1), (after + after.T) / 2


def measure(samples: Tensor, exact: Tensor) -> dict[str, float]:
    """Errors of mean and sd (`reprior_bench.metrics.moment_errors`), and c2st_fast."""
    mean_error, sd_error = metrics.moment_errors(exact, samples)
    return {"mean_error": mean_error, "sd_error": sd_error, "c2st_fast": metrics.c2st_fast(exact, samples)}


def summarise(paths: list[Path]) -> list[dict[str, Any]]:
    """Mean and largest value over theta of each metric, for each task, method and n."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    samples: dict[tuple[str, str], int] = {}
    commits: dict[tuple[str, str], set[str]] = {}
    for path in paths:
        result = read_record(path)
        cell = result["cell"]
        samples[cell["task"], cell["method"]] = result["samples"]
        commits.setdefault((cell["task"], cell["method"]), set()).add(result["commit"])
        for row in result["rows"]:
            groups.setdefault((cell["task"], cell["method"], row["n"]), []).append(row)
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


def figure(rows: list[dict[str, Any]], path: Path) -> Path:
    """Each metric against n, mean and worst over theta, one row of panels for each task; a dotted line at the goal."""
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
            ax.set(
                ylabel=names[metric],
                title=task.replace("_", " "),
                xlabel="observations n" if i == len(shown) - 1 else "",
            )
    lines, labels = axes[0, 0].get_legend_handles_labels()
    worst, goal = axes[0, 0].plot([], [], "k--", lw=0.8)[0], axes[0, 0].plot([], [], ":", color="grey")[0]
    axes[0, 0].legend([*lines, worst, goal], [*labels, "worst of the thetas", "goal"], fontsize=8)
    fig.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=120)
    plt.close(fig)
    return path
