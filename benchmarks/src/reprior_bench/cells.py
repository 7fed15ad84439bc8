"""One cell of the benchmark: a method on a task, in one run, over all observations.

A cell loads (or trains) its base, changes the prior, draws samples for each observation, and measures them against the
exact posterior under the target prior. A cell whose record exists, with all that is asked for in it, is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior import io
from reprior_bench import metrics
from reprior_bench import tasks
from reprior.adapted import adapt
from reprior_bench import EVALUATION_SEED
from reprior_bench.bases import BaseSpec, get_base, mark_of
from reprior_bench.presets import method_settings
from reprior_bench.records import commit, read_record, write_once
from reprior.errors import InputError, RefusedError
from reprior.methods.registry import METHODS
from reprior.trainer import fingerprint_of

__all__ = ["METRICS", "Cell", "check_cell", "reference_of", "refuse_stale", "run_seed"]

# The first four are the paper's; the rest are ours.
METRICS = ("c2st", "mmd", "sliced_w2", "rmse", "c2st_fast")
RUN_SEEDS = 1_000  # seeds that a run has for itself


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
        quick: the smallest version of base and method.
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
    quick: bool = False

    def __post_init__(self) -> None:
        check_cell(self, ("base",))

    @property
    def base(self) -> BaseSpec:
        """The base it stands on."""
        return BaseSpec(self.task, self.regime, self.network, self.preset, steps=self.base_steps, quick=self.quick)

    @property
    def name(self) -> str:
        """The name of its record."""
        parts = [self.base.name, self.method, f"run{self.run}", f"{self.observations}x{self.samples}"]
        return "-".join([*parts, f"seed{self.seed}"])

    def record(self, folder: Path) -> Path:
        """Where its record goes."""
        return folder / "cells" / f"{self.name}.json"

    def done(self, folder: Path) -> bool:
        """Whether its record is there, with the slow metrics if they are asked for."""
        path = self.record(folder)
        if not path.exists():
            return False
        rows = read_record(path)["rows"]
        return not self.slow or all("c2st" in row for row in rows)

    def execute(self, folder: Path, bases: Path) -> Path:
        """Runs the cell unless it is done, and returns the path of its record.

        Arguments:
            folder: where results go.
            bases: where base posteriors are, or go.
        """
        path = self.record(folder)
        if self.done(folder):
            return path
        began = time.monotonic()
        result: dict[str, Any] = {"kind": "posterior", "cell": asdict(self), "refused": "", "commit": commit()}
        try:
            result |= self._measure(folder, bases)
        except RefusedError as error:  # the method cannot make this change, and its record says so
            result |= {"refused": str(error), "rows": []}
        # It takes the place of a record without the slow metrics, and of no other.
        replace = path.exists() and not self.done(folder)
        write_once(path, {**result, "seconds": time.monotonic() - began}, replace=replace)
        return path

    def _measure(self, folder: Path, bases: Path) -> dict[str, Any]:
        posterior = get_base(self.base, bases, progress=False)
        task = tasks.get(self.task)
        theta_star, x = task.observations(self.regime, self.observations, seed=self.seed)
        seed, clock, rows = run_seed(self.run), time.monotonic(), []
        adapted = adapt(
            posterior,
            task.target_prior(self.regime),
            method="none" if self.method == "base" else self.method,
            settings=method_settings(self.method, self.preset, self.samples, self.quick),
            seed=seed,
            cache=folder / "cache",
        )
        adapt_seconds = time.monotonic() - clock
        for k in range(self.observations):
            samples, info = adapted.sample((self.samples,), x[k], seed=seed + k, return_info=True)
            row = {"observation": k, "seconds": info.seconds, "ess": info.details["ess"]}
            reference = reference_of(self.task, self.regime, self.seed, k, self.samples, x[k], folder)
            rows.append(row | measure(samples, reference, theta_star[k], self.slow))
        made = {"why": adapted.why, "chosen": adapted.method, "adapt_seconds": adapt_seconds}
        return {"base": mark_of(self.base, bases), **made, "rows": rows}


def check_cell(cell: Any, more: tuple[str, ...]) -> None:
    """Checks the attributes that all cells have.

    Arguments:
        cell: the cell.
        more: what its method may be, beside the methods of the library.
    """
    allowed = (*more, *(m for m in METHODS if m != "none"))  # no change is called base here
    if cell.method not in allowed:
        raise InputError(f"method {cell.method!r} is unknown; allowed: {', '.join(allowed)}")
    if not 1 <= cell.observations < RUN_SEEDS or cell.samples < 100 or cell.seed < 0:
        raise InputError(
            f"a cell needs 1 to {RUN_SEEDS - 1} observations, samples >= 100 and seed >= 0; got {cell.observations}, "
            f"{cell.samples} and {cell.seed}"
        )


def refuse_stale(cells: Sequence[Any], folder: Path, bases: Path) -> None:
    """Refuses to go on where records stand on other bases than those in the folder of bases.

    Arguments:
        cells: what is to be run.
        folder: where results are.
        bases: where base posteriors are.
    """
    marks = {spec: mark_of(spec, bases) for spec in {c.base for c in cells} if spec and spec.path(bases).exists()}
    stale = []
    for cell in cells:
        if cell.base in marks and cell.record(folder).exists():
            mark = read_record(cell.record(folder)).get("base", "")
            stale += [cell.name] if mark and mark != marks[cell.base] else []
    if stale:
        more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
        raise InputError(
            f"the record of {stale[0]}{more} in {folder / 'cells'} stands on another base than the one in {bases}. Remove "
            "such records to run them again, or take another folder"
        )


def run_seed(run: int) -> int:
    """The seed of a run: of the change of prior; k above it, of the samples for observation k.

    It is the same for all methods (common random numbers), so that their differences are paired in the samples too.
    """
    return RUN_SEEDS * run + 1


def reference_of(task: str, regime: str, seed: int, k: int, samples: int, x: Tensor, folder: Path) -> Tensor:
    """Exact samples under the target prior for observation k, kept in the folder's cache."""
    name = f"{task}-{regime}-seed{seed}-{k}-{samples}-{fingerprint_of(x)}"
    path = folder / "cache" / f"{name}.safetensors"
    if path.exists():
        return io.read(path, "reference").tensors["theta"]
    theta = tasks.get(task).reference(x, samples, regime, seed=seed + k)
    io.write(path, "reference", {"theta": theta}, {"name": name})
    return theta


def measure(samples: Tensor, reference: Tensor, theta_star: Tensor, slow: bool) -> dict[str, float]:
    """The metrics of one observation; NaN where a sampler ran away."""
    names = METRICS if slow else tuple(name for name in METRICS if name != "c2st")
    if not bool(torch.isfinite(samples).all()):
        return {name: float("nan") for name in names}
    values = {
        "mmd": metrics.mmd(reference, samples),
        "sliced_w2": metrics.sliced_w2(reference, samples),
        "rmse": metrics.rmse(samples, theta_star),
        "c2st_fast": metrics.c2st_fast(reference, samples),
    }
    return {**values, "c2st": metrics.c2st(reference, samples)} if slow else values
