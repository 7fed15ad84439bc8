"""The exact posteriors of the sequential benchmark, and what it makes of finished cells."""

from __future__ import annotations

import json

import pytest
import torch

from reprior import priors
from reprior_bench import tasks
from reprior_bench.sequential import SequentialCell, exact_draws, figure, measure, summarise
from reprior.errors import InputError


@pytest.mark.parametrize("task", ["gaussian_linear", "oup"])
def test_exact_draws_are_the_prior_weighted_by_all_likelihoods(task):
    cell = SequentialCell(task, "accumulate", 0, observations=2)
    _, x = cell.data()
    draws = exact_draws(task, "id", x, 4_000, seed=0)
    # Importance weights from the exact posterior of the first observation alone.
    one = tasks.get(task)
    pool = one.reference(x[0], 40_000, "id", prior="training", seed=1)
    weights = torch.softmax(one.log_likelihood(pool, x[1]).double(), 0).unsqueeze(-1)
    mean = (weights * pool).sum(0)
    sd = (weights * (pool - mean) ** 2).sum(0).sqrt()
    effective = float(1 / (weights**2).sum())
    assert effective > 1_000
    # Both sides are means of at least 1,000 effective draws: 0.035 sd; four times that.
    assert float(((draws.mean(0) - mean) / sd).abs().max()) < 0.14
    assert float((draws.std(0) / sd - 1).abs().max()) < 0.1


def test_all_observations_of_a_cell_have_one_theta():
    theta, x = SequentialCell("gaussian_linear", "ratio", 1, observations=400).data()
    assert float((x.mean(0) - theta).abs().max()) < 4 * (0.1 / 400) ** 0.5
    other, _ = SequentialCell("gaussian_linear", "ratio", 2).data()
    assert not torch.equal(theta, other)


def test_measure_sees_a_shift_and_a_stretch():
    prior = tasks.get("oup").training_prior("id")
    a, b = priors.sample(prior, 2_000, 0), priors.sample(prior, 2_000, 1)
    none, moved = measure(a, b), measure(b.mean(0) + 1.5 * (a - b.mean(0)) + 0.5 * b.std(0), b)
    assert none["mean_error"] < 0.12
    assert none["c2st_fast"] < 0.55
    assert abs(moved["mean_error"] - 0.5) < 0.15
    assert abs(moved["sd_error"] - 0.5) < 0.1
    assert moved["c2st_fast"] > 0.57


def test_a_table_and_a_figure_of_cells(tmp_path):
    paths = []
    for truth in range(2):
        rows = [
            {"n": n, "verdict": "ok", "mean_error": 0.1 * n + truth, "sd_error": 0.1, "c2st_fast": 0.5} for n in (1, 2)
        ]
        cell = {"task": "oup", "method": "accumulate"}
        paths.append(tmp_path / f"{truth}.json")
        paths[-1].write_text(json.dumps({"cell": cell, "samples": 100, "commit": "abc", "rows": rows}))
    rows = summarise(paths)
    assert [row["n"] for row in rows] == [1, 2]
    assert rows[1]["mean_error"] == pytest.approx(0.7)
    assert rows[1]["worst_mean_error"] == pytest.approx(1.2)
    assert rows[0]["truths"] == rows[0]["ok"] == 2
    assert figure(rows, tmp_path / "figures" / "s.png").stat().st_size > 10_000


@pytest.mark.parametrize(("task", "method"), [("slcp", "accumulate"), ("oup", "magic")])
def test_unknown_cells_are_refused(task, method):
    with pytest.raises(InputError, match="allowed"):
        SequentialCell(task, method, 0)
