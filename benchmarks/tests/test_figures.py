"""The figures are drawn from records."""

from __future__ import annotations

import matplotlib
import numpy as np
from synthetic import write_records

from reprior_bench.figures import draw_bands, draw_c2st
from reprior_bench.job import execute
from reprior_bench.predictive import PredictiveJob
from reprior_bench.store import Table
from reprior_bench.tables import summarise

matplotlib.use("Agg")


def inked(path) -> float:
    """The share of pixels that are not white."""
    from matplotlib.image import imread

    return float((imread(path)[..., :3].min(-1) < 0.99).mean())


def test_c2st_by_task_and_regime(tmp_path):
    assert draw_c2st([], tmp_path) is None
    write_records(tmp_path, "auto", [list(np.linspace(0.5, 0.6, 10))])
    path = draw_c2st(summarise(tmp_path), tmp_path)
    assert path is not None
    assert inked(path) > 0.01


def test_bands_come_from_the_records(tmp_path):
    assert draw_bands(tmp_path, tmp_path) == []
    job = PredictiveJob("oup", "ood", "exact", observations=1, samples=100)
    record = execute(job, tmp_path, tmp_path, "")
    Table(tmp_path, job.part).append(record)
    (path,) = draw_bands(tmp_path, tmp_path)
    assert path.name == "bands-oup-ood.png"
    assert inked(path) > 0.02
    assert record["rows"][0]["band"]
    assert draw_bands(tmp_path, tmp_path, seed=1) == []
