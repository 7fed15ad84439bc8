"""The figures of 'Guidance for Prior Change via Density Ratio Estimation' (Zang, Liu, Lin), from its tables."""

from __future__ import annotations

import csv
import math
from importlib import resources

__all__ = ["NOT_GIVEN", "PAPER_OBSERVATIONS", "PAPER_RUNS", "PAPER_SAMPLES", "PaperValue", "paper_values"]

PaperValue = tuple[float, float]  # mean, standard deviation
NOT_GIVEN: PaperValue = (math.nan, math.nan)
PAPER_OBSERVATIONS, PAPER_RUNS, PAPER_SAMPLES = 10, 3, 5_000
_NAMES = {"w2": "sliced_w2"}  # its WS-2


def paper_values() -> dict[tuple[str, str, str, str], PaperValue]:
    """(task, regime, method, metric) -> (mean, std); the standard deviation of ESS/N is not given and NaN."""
    out = {}
    for row in _rows("paper_posterior.csv"):
        metric = _NAMES.get(row["metric"], row["metric"])
        out[row["task"], row["regime"], row["method"], metric] = (float(row["mean"]), float(row["std"]))
    for row in _rows("paper_predictive.csv"):
        key = (row["task"], row["regime"], row["method"], "predict_rmse")
        out[key] = (float(row["mean"]), float(row["std"]))
    for row in _rows("paper_ess.csv"):
        for regime in ("id", "ood"):
            out[row["task"], regime, "base", "ess"] = (float(row[regime]), math.nan)
    return out


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("reprior_bench").joinpath(name).read_text()
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
