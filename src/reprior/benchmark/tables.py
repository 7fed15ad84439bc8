"""From records to rows: mean (standard deviation) over observations of the run average, and the best group.

`results.csv` has one row per task, regime, preset, method and metric, with the number of observations and runs it
rests on, its seed and the commit it was made at. Methods are ranked within one task, regime, preset and network, and
only among records with the same observations; reference rows (sir, analytic, exact) stay outside.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reprior import metrics
from reprior.benchmark.cells import METRICS
from reprior.benchmark.predictive import EXACT, PREDICT_METRICS
from reprior.benchmark.records import read_record

__all__ = ["COLUMNS", "UNRANKED", "refusals", "summarise", "write_csv"]

COLUMNS: tuple[str, ...] = (
    *("task", "regime", "preset", "network", "method", "metric", "mean", "std", "in_best_group"),
    *("observations", "runs", "samples", "seed", "commit", "note"),
)
UNRANKED = ("sir", "analytic", EXACT)  # reference rows
RANKED_METRICS = (*METRICS, "predict_rmse")  # lower is better
ALL_METRICS = {"posterior": (*METRICS, "ess"), "predictive": PREDICT_METRICS}


@dataclass
class _Entry:
    """The runs of one method on one task."""

    rows: dict[int, list[dict[str, float]]] = field(default_factory=dict)  # by run
    commits: set[str] = field(default_factory=set)
    chosen: set[str] = field(default_factory=set)
    refused: str = ""


def _entries(folder: str | Path) -> dict[tuple, _Entry]:
    """By (task, regime, preset, network, method, kind, observations, samples, seed)."""
    out: dict[tuple, _Entry] = defaultdict(_Entry)
    for path in sorted((Path(folder) / "cells").glob("*.json")):
        record = read_record(path)
        c = record["cell"]
        preset = c["preset"] + ("-quick" if c.get("quick") else "") + (f"-{c['base_steps']}" if c["base_steps"] else "")
        shared = (c["task"], c["regime"], preset, c["network"], c["method"])
        entry = out[(*shared, record.get("kind", "posterior"), c["observations"], c["samples"], c["seed"])]
        entry.commits.add(record["commit"])
        if record["refused"]:
            entry.refused = record["refused"]
        else:
            entry.rows[c["run"]] = record["rows"]
            entry.chosen.add(record["chosen"])
    return out


def summarise(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of the table of all records in a folder."""
    entries = {key: entry for key, entry in _entries(folder).items() if entry.rows}
    rows = []
    for kind, names in ALL_METRICS.items():
        for metric in names:
            values = {k: per_observation(e.rows, metric) for k, e in entries.items() if k[5] == kind}
            table = {k: v for k, v in values.items() if v is not None}
            rows += [_row(key, v, metric, entries[key], _best(key, metric, table)) for key, v in table.items()]
    return sorted(rows, key=lambda r: tuple(str(r[c]) for c in COLUMNS[:6]))


def refusals(folder: str | Path) -> dict[tuple[str, str, str, str, str], str]:
    """(task, regime, preset, network, method) -> why the method refused the change."""
    return {key[:5]: e.refused for key, e in _entries(folder).items() if e.refused and not e.rows}


def _best(key: tuple, metric: str, table: dict[tuple, np.ndarray]) -> bool:
    """Whether a method is in the best group of its task, regime, preset and network."""
    if metric not in RANKED_METRICS or key[4] in UNRANKED:
        return False
    alike = {k[4]: v for k, v in table.items() if k[:4] == key[:4] and k[5:] == key[5:] and k[4] not in UNRANKED}
    finite = {method: v.tolist() for method, v in alike.items() if np.isfinite(v).all()}
    return bool(finite) and key[4] in metrics.best_group(finite)


def _row(key: tuple, v: np.ndarray, metric: str, entry: _Entry, best: bool) -> dict[str, Any]:
    chosen = sorted(entry.chosen - {key[4], "none"})
    return dict(zip(COLUMNS[:5], key[:5], strict=True)) | {
        "metric": metric,
        "mean": float(np.mean(v)),
        "std": float(np.std(v, ddof=1)) if len(v) > 1 else math.nan,
        "in_best_group": int(best),
        "observations": len(v),
        "runs": len(entry.rows),
        "samples": key[7],
        "seed": key[8],
        "commit": " ".join(sorted(entry.commits)),
        "note": f"chose {', '.join(chosen)}" if chosen else "",
    }


def per_observation(runs: dict[int, list[dict[str, float]]], metric: str) -> np.ndarray | None:
    """The run average of a metric for each observation; None where some run has not measured it."""
    if any(metric not in row for rows in runs.values() for row in rows):
        return None
    return np.mean([[row[metric] for row in rows] for rows in runs.values()], axis=0)


def write_csv(rows: list[dict[str, Any]], path: str | Path) -> Path:
    """Writes the rows."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: (f"{v:.4f}" if isinstance(v, float) else v) for k, v in row.items()})
    return path
