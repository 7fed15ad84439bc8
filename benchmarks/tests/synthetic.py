"""Records with known numbers, written as the jobs write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reprior_bench.store import Table

JOB = {"task": "oup", "regime": "id", "method": "nre", "preset": "best", "run": 0, "observations": 10}
JOB |= {"samples": 5_000, "seed": 50_000}


def write_records(
    folder: Path,
    method: str,
    values: list[list[float]],
    metric: str = "c2st",
    part: str = "posterior",
    more: dict[str, list[float]] | None = None,
    base: str = "",
    skip: int = 0,
    **job: Any,
) -> None:
    """One record per run; values by run and observation; more: other metrics by observation; skip: runs left out."""
    for run, row in enumerate(values):
        if run < skip:
            continue
        rows = [
            {"observation": k, metric: v, "ess": 0.5, **{name: found[k] for name, found in (more or {}).items()}}
            for k, v in enumerate(row)
        ]
        key = {**JOB, "method": method, "run": run, "observations": len(row), **job}
        record = {"job": key, "commit": "abc1234", "base": base, "refused": "", "chosen": method, "rows": rows}
        Table(folder, part).append(record)


def write_refusal(folder: Path, method: str, why: str) -> None:
    """The record of a method that refused."""
    record = {"job": {**JOB, "method": method}, "commit": "abc1234", "base": "", "refused": why, "rows": []}
    Table(folder, "posterior").append(record)
