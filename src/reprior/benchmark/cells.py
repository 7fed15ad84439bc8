"""One cell of the benchmark: a method on a task, in one run, over all observations.

A cell loads (or trains) its base, changes the prior, draws samples for each observation, and measures them against the
exact posterior under the target prior. Its result is one JSON file, written once and atomically: a cell whose file
exists is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior import files, metrics, tasks
from reprior.adapted import adapt
from reprior.benchmark.bases import EVALUATION_SEED, BaseSpec, get_base
from reprior.errors import InputError
from reprior.guidance.methods import METHODS
from reprior.ratio.losses import ESTIMATORS

__all__ = ["METRICS", "Cell", "read_cell", "reference_of", "run_cell", "write_json"]

# The first four are the paper's; the rest are ours.
METRICS = ("c2st", "mmd", "sliced_w2", "rmse", "c2st_fast")
SLOW = ("c2st",)


@dataclass(frozen=True)
class Cell:
    """What is run.

    Attributes:
        task: the name of the task.
        regime: "id" or "ood".
        method: the method; "base" is no change.
        preset: "best" or "paper".
        network: the base network.
        run: the number of the run; it seeds the change of prior and the samples.
        observations: the number of observations.
        samples: samples per observation.
        seed: seeds the observations.
        slow: whether slow metrics (the random forest) are measured.
        base_steps: training steps of the base; 0 takes the preset's.
    """

    task: str
    regime: str
    method: str
    preset: str = "best"
    network: str = "mlp"
    run: int = 0
    observations: int = 10
    samples: int = 5_000
    seed: int = EVALUATION_SEED
    slow: bool = True
    base_steps: int = 0

    def __post_init__(self) -> None:
        if self.method != "base" and self.method not in METHODS:
            raise InputError(f"method {self.method!r} is unknown; allowed: base, {', '.join(METHODS)}")
        if self.observations < 1 or self.samples < 100:
            raise InputError(f"a cell needs observations >= 1 and samples >= 100; got {self}")

    @property
    def base(self) -> BaseSpec:
        """The base it stands on."""
        return BaseSpec(self.task, self.regime, self.network, self.preset, steps=self.base_steps)

    @property
    def name(self) -> str:
        """The name of its file."""
        parts = [self.base.name, self.method, f"run{self.run}", f"{self.observations}x{self.samples}"]
        return "-".join([*parts, f"seed{self.seed}"])


def write_json(path: Path, data: Any) -> None:
    """Writes JSON atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(data, indent=1))
    os.replace(partial, path)


def read_cell(path: Path) -> dict[str, Any]:
    """A cell's result."""
    return json.loads(path.read_text())


def reference_of(cell: Cell, k: int, x: Tensor, folder: Path) -> Tensor:
    """Exact samples under the target prior for observation k, kept in the folder's cache."""
    name = f"{cell.task}-{cell.regime}-seed{cell.seed}-{k}-{cell.samples}"
    path = folder / "cache" / f"{name}.safetensors"
    if path.exists():
        return files.read(path, "reference").tensors["theta"]
    theta = tasks.get(cell.task).reference(x, cell.samples, cell.regime, seed=cell.seed + k)
    files.write(path, "reference", {"theta": theta}, {"name": name})
    return theta


def run_cell(cell: Cell, folder: str | Path, bases: str | Path) -> Path:
    """Runs a cell unless it is done, and returns the path of its result.

    Arguments:
        cell: what to run.
        folder: where results go.
        bases: where base posteriors are, or go.
    """
    torch.set_num_threads(1)
    folder = Path(folder)
    path = folder / "cells" / f"{cell.name}.json"
    if path.exists():
        return path
    posterior = get_base(cell.base, bases, progress=False)
    task = tasks.get(cell.task)
    theta_star, x = task.observations(cell.regime, cell.observations, seed=cell.seed)
    method = "none" if cell.method == "base" else cell.method
    learned = method in ESTIMATORS or method == "wsm"
    settings = cell.preset if learned else None
    seed = 1_000 * cell.run + 1
    clock = time.monotonic()
    result: dict[str, Any] = {"cell": asdict(cell), "rows": [], "refused": "", "commit": commit()}
    try:
        adapted = adapt(posterior, task.target_prior(cell.regime), method=method, settings=settings, seed=seed)
        result |= {"why": adapted.why, "chosen": adapted.method, "adapt_seconds": time.monotonic() - clock}
        for k in range(cell.observations):
            samples, info = adapted.sample(
                (cell.samples,), x[k], seed=seed + k, sampler=posterior.sampler, return_info=True
            )
            row = {"observation": k, "seconds": info.seconds, "ess": info.details["ess"]}
            row |= measure(cell, samples, reference_of(cell, k, x[k], folder), theta_star[k])
            result["rows"].append(row)
    except InputError as error:  # a method that refuses this change says so in its cell
        result |= {"refused": str(error), "rows": []}
    write_json(path, result)
    return path


def measure(cell: Cell, samples: Tensor, reference: Tensor, theta_star: Tensor) -> dict[str, float]:
    """The metrics of one observation."""
    if not bool(torch.isfinite(samples).all()):
        return {name: float("nan") for name in METRICS}
    values = {
        "mmd": metrics.mmd(reference, samples),
        "sliced_w2": metrics.sliced_w2(reference, samples),
        "rmse": metrics.rmse(samples, theta_star),
        "c2st_fast": metrics.c2st_fast(reference, samples),
    }
    return {**values, "c2st": metrics.c2st(reference, samples)} if cell.slow else values


def commit() -> str:
    """The short commit of the working tree, with a mark where it has changes; empty outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, timeout=10
        )
    except OSError:
        return ""
    return done.stdout.strip()
