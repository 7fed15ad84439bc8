"""The predictive part: its metrics, its exact row, and a tiny Simformer through it."""

from __future__ import annotations

import math

import pytest
import torch

from reprior.errors import InputError
from reprior_bench.job import execute
from reprior_bench.predictive import PredictiveJob, errors_of, first_third


def test_the_first_third_is_observed():
    assert int(first_third(25).sum()) == 8
    assert bool(first_third(25)[:8].all())
    assert int(first_third(101).sum()) == 33


def test_rmse_and_coverage_of_a_known_law():
    # Draws N(0, 1) about the truth 1: RMSE = sqrt(1 + 1). The central 95 % ends at 1.96: 1.9 is inside, 2.1 is not.
    draws = torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0))
    values = errors_of(draws, torch.tensor([1.0, 1.0, 1.0]))
    assert values["predict_rmse"] == pytest.approx(math.sqrt(2), abs=0.01)  # 4 standard errors of 600,000 terms
    assert errors_of(draws, torch.tensor([1.9, -1.9, 2.1]))["predict_coverage"] == pytest.approx(2 / 3)
    assert math.isnan(errors_of(draws * torch.inf, torch.ones(3))["predict_rmse"])


def test_the_exact_predictive_of_oup_scores_what_the_paper_says(tmp_path):
    # The paper's base has .54 (.10) on OUP ID; the exact predictive over our ten observations has about the same.
    job = PredictiveJob("oup", "id", "exact", samples=500)
    assert job.base is None
    record = execute(job, tmp_path, tmp_path, "")
    scores = torch.tensor([row["predict_rmse"] for row in record["rows"]])
    assert float(scores.mean()) == pytest.approx(0.54, abs=3 * 0.10 / math.sqrt(10))
    covered = sum(row["predict_coverage"] for row in record["rows"]) / 10
    assert covered > 0.8  # 17 points each, strongly dependent within a series: sd of the mean is about .03
    assert "band" in record["rows"][0]
    assert len(record["rows"][0]["band"][0]) == 25
    assert "band" not in record["rows"][5]


def test_a_tiny_simformer_goes_through(tmp_path):
    for method in ("base", "sir"):
        job = PredictiveJob("oup", "id", method, "quick", observations=1, samples=100)
        assert job.base is not None
        assert job.base.network == "simformer"
        record = execute(job, tmp_path, tmp_path, "")
        assert record["refused"] == ""
        assert math.isfinite(record["rows"][0]["predict_rmse"])
        low, middle, high = (torch.tensor(v) for v in record["rows"][0]["band"])
        x, observed = torch.tensor(record["rows"][0]["x"]), first_third(25)
        assert torch.allclose(middle[observed], x[observed], atol=0.02)  # what was observed stays
        assert bool((high > low)[~observed].all())


def test_tasks_without_a_series_are_refused():
    with pytest.raises(InputError, match="no series to predict; allowed: oup, turin"):
        PredictiveJob("slcp", "id", "base")
