"""From cells to tables: mean (standard deviation) over observations of the run average, best group, the paper beside.

`results.csv` has one row per task, regime, preset, method and metric, with the number of observations and runs it
rests on, its seed and the commit it was made at.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from reprior import metrics
from reprior.benchmark.cells import METRICS, read_cell

__all__ = ["COLUMNS", "UNRANKED", "paper_values", "summarise", "write_csv"]

COLUMNS: tuple[str, ...] = (
    "task",
    "regime",
    "preset",
    "network",
    "method",
    "metric",
    "mean",
    "std",
    "in_best_group",
    "observations",
    "runs",
    "samples",
    "seed",
    "commit",
    "note",
)
UNRANKED = ("sir", "analytic")  # reference rows, outside the ranking
PAPER_NAMES = {"w2": "sliced_w2"}


def summarise(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of the table of all cells in a folder."""
    values: dict[tuple, dict[int, list[dict[str, float]]]] = defaultdict(dict)
    notes: dict[tuple, str] = {}
    commits: dict[tuple, str] = {}
    for path in sorted((Path(folder) / "cells").glob("*.json")):
        result = read_cell(path)
        c = result["cell"]
        key = (c["task"], c["regime"], c["preset"], c["network"], c["method"], c["seed"], c["samples"])
        commits[key] = result["commit"]
        if result["refused"]:
            notes[key] = "refused: " + result["refused"]
        else:
            values[key][c["run"]] = result["rows"]
            notes[key] = "" if result["chosen"] == c["method"] else f"chose {result['chosen']}"
    rows = []
    for metric in METRICS:
        table = {key: per_observation(runs, metric) for key, runs in values.items()}
        table = {key: v for key, v in table.items() if v is not None}
        for key, v in table.items():
            cell = key[:4]
            rivals = {k[4]: w for k, w in table.items() if k[:4] == cell and k[4] not in UNRANKED and k[5:] == key[5:]}
            best = metrics.best_group({m: w.tolist() for m, w in _finite(rivals).items()}) if rivals else set()
            rows.append(
                dict(zip(COLUMNS[:5], key[:5], strict=True))
                | {
                    "metric": metric,
                    "mean": float(np.mean(v)),
                    "std": float(np.std(v, ddof=1)) if len(v) > 1 else math.nan,
                    "in_best_group": int(key[4] in best),
                    "observations": len(v),
                    "runs": len(values[key]),
                    "samples": key[6],
                    "seed": key[5],
                    "commit": commits[key],
                    "note": notes[key],
                }
            )
    return sorted(rows, key=lambda r: tuple(str(r[c]) for c in COLUMNS[:6]))


def per_observation(runs: dict[int, list[dict[str, float]]], metric: str) -> np.ndarray | None:
    """The run average of a metric for each observation; None where it was not measured."""
    lists = [[row.get(metric, math.nan) for row in rows] for rows in runs.values()]
    if not lists or any(metric not in row for rows in runs.values() for row in rows):
        return None
    return np.mean(np.array(lists, dtype=float), axis=0)


def _finite(rivals: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {m: w for m, w in rivals.items() if np.isfinite(w).all()}


def write_csv(rows: list[dict[str, Any]], path: str | Path) -> Path:
    """Writes the table."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, list(COLUMNS))
        writer.writeheader()
        for row in rows:
            shown = {k: (f"{v:.4f}" if isinstance(v, float) else v) for k, v in row.items()}
            writer.writerow(shown)
    return path


def paper_values() -> dict[tuple[str, str, str, str], tuple[float, float]]:
    """(task, regime, method, metric) -> (mean, std), from the paper's table."""
    text = resources.files("reprior.benchmark").joinpath("paper_posterior.csv").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    out = {}
    for row in csv.DictReader(lines):
        metric = PAPER_NAMES.get(row["metric"], row["metric"])
        out[row["task"], row["regime"], row["method"], metric] = (float(row["mean"]), float(row["std"]))
    return out
