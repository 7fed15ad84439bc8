"""From records to rows: mean (standard deviation) over observations of the run average, and the best group.

`results.csv` has one row per task, regime, preset, network, method and metric, with the number of observations and runs
it rests on, its seed and the commits it was made at. Rows are made of the records of one seed; where a method has
several counts of observations and samples, the paper's, else the largest. Methods are ranked within one task, regime,
preset and network, by the runs that all of them have, and only those with the first of these counts; reference rows (sir,
analytic, exact) stay outside.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reprior_bench import EVALUATION_SEED, metrics
from reprior_bench.paper import PAPER_OBSERVATIONS, PAPER_SAMPLES
from reprior_bench.posterior import METRICS, PosteriorJob
from reprior_bench.predictive import PREDICT_METRICS, PredictiveJob
from reprior_bench.presets import EXACT
from reprior_bench.store import Table

__all__ = ["COLUMNS", "UNRANKED", "Place", "refusals", "summarise"]

COLUMNS: tuple[str, ...] = (
    *("task", "regime", "preset", "network", "method", "metric", "mean", "std", "in_best_group"),
    *("observations", "runs", "samples", "seed", "commit", "note"),
)
UNRANKED = ("sir", "analytic", EXACT)  # reference rows
RANKED_METRICS = (*METRICS, "predict_rmse")  # lower is better
ALL_METRICS = {"posterior": (*METRICS, "ess"), "predictive": PREDICT_METRICS}


Place = tuple[str, str, str, str, str, str]  # task, regime, preset, network, part, method


@dataclass
class _Entry:
    """The runs of one method on one task."""

    observations: int
    samples: int
    seed: int
    rows: dict[int, list[dict[str, float]]] = field(default_factory=dict)  # by run
    commits: set[str] = field(default_factory=set)
    chosen: set[str] = field(default_factory=set)
    bases: set[str] = field(default_factory=set)
    refused: str = ""

    @property
    def size(self) -> tuple[bool, int, int]:
        """How much it rests on: the paper's counts come before any other, then the larger ones."""
        return _size(self.observations, self.samples)

    def runs(self, metric: str) -> dict[int, np.ndarray]:
        """The values of a metric over observations, for each run that has measured it."""
        have = {run: rows for run, rows in self.rows.items() if all(metric in row for row in rows)}
        return {run: np.array([row[metric] for row in rows]) for run, rows in have.items()}


def _entries(folder: str | Path, seed: int) -> dict[Place, _Entry]:
    """The records of one seed: those of the paper's size, else with the most observations, then samples, of each place."""
    found: dict[tuple[Place, int, int], _Entry] = {}
    for kind in (PosteriorJob, PredictiveJob):
        for record in Table(folder, kind.part).records().values():
            job = record["job"]
            if job["seed"] != seed:
                continue
            network = kind.network_of(job["preset"])
            place = (job["task"], job["regime"], job["preset"], network, kind.part, job["method"])
            size = job["observations"], job["samples"]
            entry = found.setdefault((place, *size), _Entry(*size, seed))
            entry.commits.add(record["commit"])
            entry.bases.add(record["base"])
            if record["refused"]:
                entry.refused = record["refused"]
            else:
                entry.rows[job["run"]] = record["rows"]
                entry.chosen.add(record["chosen"])
    return {place: entry for (place, *_), entry in sorted(found.items(), key=lambda item: (item[0][0], item[1].size))}


def _size(observations: int, samples: int) -> tuple[bool, int, int]:
    return (observations, samples) == (PAPER_OBSERVATIONS, PAPER_SAMPLES), observations, samples


def summarise(folder: str | Path, seed: int = EVALUATION_SEED) -> list[dict[str, Any]]:
    """The rows of the table of the records in a folder.

    Arguments:
        folder: where the records are.
        seed: the seed of the observations; records of other seeds are left out.
    """
    groups: dict[tuple[str, ...], dict[str, _Entry]] = defaultdict(dict)
    for place, entry in _entries(folder, seed).items():
        if entry.rows:
            groups[place[:5]][place[5]] = entry
    rows = []
    for group, entries in groups.items():
        mixed = len(set().union(*(entry.bases for entry in entries.values())) - {""}) > 1
        for metric in ALL_METRICS[group[4]]:
            best = _best(entries, metric)
            for method, entry in entries.items():
                runs = entry.runs(metric)
                if runs:
                    rows.append(_row(group, method, metric, entry, runs, method in best, mixed))
    return sorted(rows, key=lambda r: tuple(str(r[c]) for c in COLUMNS[:6]))


def refusals(folder: str | Path, seed: int = EVALUATION_SEED) -> dict[Place, str]:
    """(task, regime, preset, network, part, method) -> why the method refused the change."""
    return {place: entry.refused for place, entry in _entries(folder, seed).items() if entry.refused and not entry.rows}


def _best(entries: dict[str, _Entry], metric: str) -> set[Hashable]:
    """The methods of the best group of one task, regime, preset and network; none where nothing can be compared."""
    if metric not in RANKED_METRICS:
        return set()
    ranked = _ranked(entries, metric)
    if metric == "c2st" and not set(_ranked(entries, "c2st_fast")) <= set(ranked):
        return set()  # the forest has judged only some of the methods
    common = set.intersection(*(set(runs) for runs in ranked.values())) if ranked else set()
    averages = {method: np.mean([runs[run] for run in sorted(common)], axis=0) for method, runs in ranked.items()}
    finite = {method: v.tolist() for method, v in averages.items() if common and np.isfinite(v).all()}
    return metrics.best_group(finite) if finite and len(ranked) > 1 else set()


def _ranked(entries: dict[str, _Entry], metric: str) -> dict[str, dict[int, np.ndarray]]:
    """The runs of each method that takes part in the ranking: all of the first size."""
    measured = {m: e for m, e in entries.items() if m not in UNRANKED and e.runs(metric)}
    most = max((e.size for e in measured.values()), default=None)
    return {method: entry.runs(metric) for method, entry in measured.items() if entry.size == most}


def _row(
    group: tuple[str, ...],
    method: str,
    metric: str,
    entry: _Entry,
    runs: dict[int, np.ndarray],
    best: bool,
    mixed: bool,
) -> dict[str, Any]:
    chosen = sorted(entry.chosen - {method, "none"})
    notes = [f"chose {', '.join(chosen)}"] if chosen else []
    notes += ["methods stand on different bases"] if mixed else []
    v = np.mean(list(runs.values()), axis=0)
    return dict(zip(COLUMNS[:5], (*group[:4], method), strict=True)) | {
        "metric": metric,
        "mean": float(np.mean(v)),
        "std": float(np.std(v, ddof=1)) if len(v) > 1 else math.nan,
        "in_best_group": int(best),
        "observations": len(v),
        "runs": len(runs),
        "samples": entry.samples,
        "seed": entry.seed,
        "commit": " ".join(sorted(entry.commits)),
        "note": "; ".join(notes),
    }
