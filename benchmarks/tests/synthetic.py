"""Records with known numbers, written as the cells write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reprior_bench.records import write_once


def write_records(
    folder: Path,
    method: str,
    values: list[list[float]],
    metric: str = "c2st",
    kind: str = "posterior",
    more: dict[str, list[float]] | None = None,
    base: str = "",
    skip: int = 0,
    **cell: Any,
) -> None:
    """One record per run; values by run and observation; more: other metrics by observation; skip: runs left out."""
    for run, row in enumerate(values):
        if run < skip:
            continue
        data = {"task": "oup", "regime": "id", "preset": "best", "network": "mlp", "method": method, "run": run}
        data |= {"observations": len(row), "samples": 5_000, "seed": 20_000, "base_steps": 0, "quick": False, **cell}
        rows = [
            {"observation": k, metric: v, "ess": 0.5, **{name: found[k] for name, found in (more or {}).items()}}
            for k, v in enumerate(row)
        ]
        record = {
            "base": base,
            "kind": kind,
            "cell": data,
            "refused": "",
            "chosen": method,
            "commit": "abc1234",
            "rows": rows,
        }
        name = "-".join(str(v) for v in data.values())
        write_once(folder / "cells" / f"{kind}-{name}.json", record)


def write_refusal(folder: Path, method: str, why: str) -> None:
    """The record of a method that refused."""
    cell = {"task": "oup", "regime": "id", "preset": "best", "network": "mlp", "method": method, "run": 0}
    cell |= {"observations": 10, "samples": 5_000, "seed": 20_000, "base_steps": 0, "quick": False}
    record = {"kind": "posterior", "cell": cell, "refused": why, "commit": "abc1234", "rows": []}
    write_once(folder / "cells" / f"refused-{method}.json", record)
