"""The figures are drawn from records."""

from __future__ import annotations

import json

import matplotlib
import numpy as np
from synthetic import write_records

from reprior_bench.figures import draw_bands, draw_c2st
from reprior_bench.predictive import PredictCell
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
    assert draw_bands(tmp_path) == []
    PredictCell("oup", "ood", "exact", observations=1, samples=100).execute(tmp_path, tmp_path)
    (path,) = draw_bands(tmp_path)
    assert path.name == "bands-oup-ood.png"
    assert inked(path) > 0.02
    record = next((tmp_path / "cells").glob("*.json"))
    assert json.loads(record.read_text())["rows"][0]["band"]
