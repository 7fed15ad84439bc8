"""Two versions side by side: did a change of the code change a result?

Both have run the same jobs on the same observations with the same seeds, each with its own folder of records. For each
job that both have, c2st_fast (boosted trees; 0.5 is perfect) is compared observation by observation.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from reprior_bench.posterior import PosteriorJob
from reprior_bench.store import Table

__all__ = ["compare"]


def compare(before: str | Path, after: str | Path, seed: int) -> list[dict[str, Any]]:
    """One row for each job that both folders have a record of: the two means, and their paired difference.

    ``error`` is the standard error of one difference from the sampling of the test alone: each C2ST is the fraction of
    2 n rows that were told apart, so its standard error is about sqrt(c (1 - c) / 2n), and a mean over observations has
    that over the root of their number.

    Arguments:
        before: the folder of one version's records.
        after: the folder of the other's.
        seed: the seed of the observations.
    """
    first, second = (Table(folder, PosteriorJob.part).records() for folder in (before, after))
    rows = []
    for name, one in first.items():
        other, job = second.get(name), one["job"]
        if other is None or job["seed"] != seed or not one["rows"] or not other["rows"]:
            continue
        a, b = (np.array([row["c2st_fast"] for row in record["rows"]]) for record in (one, other))
        middle = float(np.concatenate([a, b]).mean())
        error = math.sqrt(2 * middle * (1 - middle) / (2 * job["samples"]) / len(a))
        rows.append(
            {
                **{key: job[key] for key in ("task", "regime", "method", "run")},
                "before": float(a.mean()),
                "after": float(b.mean()),
                "difference": float((b - a).mean()),
                "error": error,
                "chosen": " -> ".join(dict.fromkeys((one["chosen"], other["chosen"]))),
            }
        )
    return rows
