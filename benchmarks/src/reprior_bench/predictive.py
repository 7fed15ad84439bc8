"""The predictive part: the first third of a series is observed, the rest is predicted.

A Simformer base draws q(theta, x_missing | x_observed) by the same method as for theta alone. Measured for each
observation, over the missing points j and the draws i:

    predict_rmse      sqrt(mean_ij (x_ij - x*_j)^2), x* the series as it went on: the paper's figure
    predict_coverage  the fraction of points x*_j inside the central 95 % of their draws

The method "exact" draws from the task's exact predictive: what a perfect base with a perfect change would score.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from reprior.errors import InputError
from reprior_bench import metrics, tasks
from reprior_bench.bases import BaseSpec
from reprior_bench.posterior import MethodJob, run_seed
from reprior_bench.presets import EXACT, UNCHANGED
from reprior_bench.tasks import SERIES

__all__ = ["PREDICT_METRICS", "PredictiveJob", "first_third"]

PREDICT_METRICS = ("predict_rmse", "predict_coverage")
BAND = (0.025, 0.5, 0.975)
BANDS_KEPT = 2  # observations whose bands go into the record, for the figures


def first_third(points: int) -> Tensor:
    """The mask of what is observed, with shape (points,)."""
    return torch.arange(points) < points // 3


@dataclass(frozen=True)
class PredictiveJob(MethodJob):
    """Predictions by a method; attributes as in `MethodJob`; the method may also be "exact"."""

    part = "predictive"
    more: ClassVar[tuple[str, ...]] = (UNCHANGED, EXACT)

    def __post_init__(self) -> None:
        if self.task not in SERIES:
            raise InputError(f"task {self.task!r} has no series to predict; allowed: {', '.join(SERIES)}")
        super().__post_init__()

    @staticmethod
    def network_of(preset: str) -> str:
        return "simformer"

    @property
    def base(self) -> BaseSpec | None:
        return None if self.method == EXACT else super().base

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        task = tasks.get(self.task)
        _, x = task.observations(self.regime, self.observations, seed=self.seed)
        observed = first_third(task.x_dim)
        adapted = None if self.method == EXACT else self.adapt(bases, cache, observed)
        rows = []
        for k in range(self.observations):
            began, seed = time.monotonic(), run_seed(self.run) + k
            if adapted is None:
                series = task.predict_reference(x[k], observed, self.samples, self.regime, seed=seed)
            else:
                series = adapted.predict((self.samples,), x[k].masked_fill(~observed, torch.nan), seed=seed)[1]
            row: dict[str, Any] = {"observation": k, "seconds": time.monotonic() - began}
            row |= errors_of(series[:, ~observed], x[k, ~observed])
            if self.run == 0 and k < BANDS_KEPT:
                row["band"] = _rounded(series.quantile(torch.tensor(BAND), dim=0))
                row["x"] = _rounded(x[k])
            rows.append(row)
        if adapted is None:
            return {"why": "asked for", "chosen": EXACT, "rows": rows}
        return {"why": adapted.method.why, "chosen": adapted.method.name, "rows": rows}


def errors_of(draws: Tensor, truth: Tensor) -> dict[str, float]:
    """The metrics of one observation.

    Arguments:
        draws: predicted points, with shape (n, j).
        truth: the points as they came, with shape (j,).
    """
    if not bool(torch.isfinite(draws).all()):
        return dict.fromkeys(PREDICT_METRICS, float("nan"))
    low, high = draws.quantile(torch.tensor([BAND[0], BAND[-1]]), dim=0)
    covered = ((truth >= low) & (truth <= high)).float().mean()
    return {"predict_rmse": metrics.rmse(draws, truth), "predict_coverage": float(covered)}


def _rounded(values: Tensor) -> Any:
    return [round(v, 3) for v in values.tolist()] if values.ndim == 1 else [_rounded(row) for row in values]
