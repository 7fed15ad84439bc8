"""The posterior predictive part: the first third of a series is observed, the rest is predicted.

A Simformer base draws q(theta, x_missing | x_observed) by the same guidance as for theta alone. Measured for each
observation, over the missing points j and the draws i:

    predict_rmse      sqrt(mean_ij (x_ij - x*_j)^2), x* the series as it went on: the paper's figure
    predict_coverage  the share of points x*_j inside the central 95 % of their draws

The method "exact" draws from the task's exact predictive: what a perfect base with perfect guidance would score.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior_bench import metrics
from reprior_bench import tasks
from reprior.adapted import adapt
from reprior_bench import EVALUATION_SEED
from reprior_bench.bases import BaseSpec, get_base, mark_of
from reprior_bench.cells import check_cell, run_seed
from reprior_bench.presets import SERIES, method_settings
from reprior_bench.records import commit, write_once
from reprior.errors import InputError, RefusedError

__all__ = ["EXACT", "PREDICT_METRICS", "PredictCell", "first_third"]

PREDICT_METRICS = ("predict_rmse", "predict_coverage")
EXACT = "exact"
BAND = (0.025, 0.5, 0.975)
BANDS_KEPT = 2  # observations whose bands go into the record, for the figures


def first_third(points: int) -> Tensor:
    """The mask of what is observed, with shape (points,)."""
    return torch.arange(points) < points // 3


@dataclass(frozen=True)
class PredictCell:
    """What is run; the attributes are those of `Cell`, on a Simformer base.

    Attributes:
        task: the name of the task, one whose data are a series.
        regime: "id" or "ood".
        method: the method; "base" is no change, "exact" the task's own predictive.
        preset: "best" or "paper".
        run: the number of the run; it seeds the change of prior and the draws.
        observations: the number of observations.
        samples: draws per observation.
        seed: seeds the observations.
        base_steps: training steps of the base; 0 takes the preset's.
        quick: the smallest version of base and method.
    """

    task: str
    regime: str
    method: str
    preset: str = "best"
    run: int = 0
    observations: int = 10
    samples: int = 5_000
    seed: int = EVALUATION_SEED
    base_steps: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        if self.task not in SERIES:
            raise InputError(f"task {self.task!r} has no series to predict; allowed: {', '.join(SERIES)}")
        check_cell(self, ("base", EXACT))

    @property
    def base(self) -> BaseSpec | None:
        """The base it stands on; the exact predictive needs none."""
        return None if self.method == EXACT else self._spec

    @property
    def _spec(self) -> BaseSpec:
        return BaseSpec(self.task, self.regime, "simformer", self.preset, steps=self.base_steps, quick=self.quick)

    @property
    def name(self) -> str:
        """The name of its record."""
        parts = ["predict", self._spec.name, self.method, f"run{self.run}", f"{self.observations}x{self.samples}"]
        return "-".join([*parts, f"seed{self.seed}"])

    def record(self, folder: Path) -> Path:
        """Where its record goes."""
        return folder / "cells" / f"{self.name}.json"

    def done(self, folder: Path) -> bool:
        """Whether its record is there."""
        return self.record(folder).exists()

    def execute(self, folder: Path, bases: Path) -> Path:
        """Runs the cell unless it is done, and returns the path of its record; arguments as in `Cell.execute`."""
        path = self.record(folder)
        if self.done(folder):
            return path
        began = time.monotonic()
        result: dict[str, Any] = {"kind": "predictive", "cell": asdict(self), "refused": "", "commit": commit()}
        result["cell"]["network"] = self._spec.network
        try:
            result |= self._measure(folder, bases)
        except RefusedError as error:  # the method cannot make this change, and its record says so
            result |= {"refused": str(error), "rows": []}
        write_once(path, {**result, "seconds": time.monotonic() - began})
        return path

    def _measure(self, folder: Path, bases: Path) -> dict[str, Any]:
        task = tasks.get(self.task)
        _, x = task.observations(self.regime, self.observations, seed=self.seed)
        observed, seed = first_third(task.x_dim), run_seed(self.run)
        if self.method == EXACT:
            chosen, why = EXACT, "asked for"

            def draw(k: int) -> Tensor:
                return task.predict_reference(x[k], observed, self.samples, self.regime, seed=seed + k)
        else:
            posterior = get_base(self._spec, bases, progress=False)
            adapted = adapt(
                posterior,
                task.target_prior(self.regime),
                method="none" if self.method == "base" else self.method,
                settings=method_settings(self.method, self.preset, self.samples, self.quick),
                seed=seed,
                observed=observed,
                cache=folder / "cache",
            )
            chosen, why = adapted.method, adapted.why

            def draw(k: int) -> Tensor:
                return adapted.predict((self.samples,), x[k].masked_fill(~observed, torch.nan), seed=seed + k)[1]

        rows = []
        for k in range(self.observations):
            clock = time.monotonic()
            series = draw(k)
            row: dict[str, Any] = {"observation": k, "seconds": time.monotonic() - clock}
            row |= measure_series(series[:, ~observed], x[k, ~observed])
            if self.run == 0 and k < BANDS_KEPT:
                row["band"] = _rounded(series.quantile(torch.tensor(BAND), dim=0))
                row["x"] = _rounded(x[k])
            rows.append(row)
        base = "" if self.method == EXACT else mark_of(self._spec, bases)
        return {"base": base, "why": why, "chosen": chosen, "rows": rows}


def measure_series(draws: Tensor, truth: Tensor) -> dict[str, float]:
    """The metrics of one observation.

    Arguments:
        draws: predicted points, with shape (n, j).
        truth: the points as they came, with shape (j,).
    """
    if not bool(torch.isfinite(draws).all()):
        return {name: float("nan") for name in PREDICT_METRICS}
    low, high = draws.quantile(torch.tensor([BAND[0], BAND[-1]]), dim=0)
    covered = ((truth >= low) & (truth <= high)).float().mean()
    return {"predict_rmse": metrics.rmse(draws, truth), "predict_coverage": float(covered)}


def _rounded(values: Tensor) -> Any:
    return [round(v, 3) for v in values.tolist()] if values.ndim == 1 else [_rounded(row) for row in values]
