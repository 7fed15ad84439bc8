"""The exact posteriors of the sequential benchmark, and what it makes of finished cells."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reprior import priors
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.methods import RatioSettings
from reprior.networks.fit import Training
from reprior.sequential import AccumulateSettings, RatioUpdateSettings
from reprior_bench import sequential, tasks
from reprior_bench.job import execute
from reprior_bench.methods.priorguide_mc import MonteCarloSettings
from reprior_bench.sequential import SequentialJob, Way, draw, errors_of, summarise
from reprior_bench.store import Table

BASES = Path(__file__).parents[1] / "results" / "bases"


@pytest.mark.parametrize("task", ["gaussian_linear", "oup"])
def test_exact_draws_are_the_prior_weighted_by_all_likelihoods(task):
    _, x = SequentialJob(task, "accumulate", 0, observations=2, seed=20_000).data()
    draws = tasks.get(task).joint_reference(x, 4_000, "id", seed=0)
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
    theta, x = SequentialJob("gaussian_linear", "ratio", 1, observations=400).data()
    assert float((x.mean(0) - theta).abs().max()) < 4 * (0.1 / 400) ** 0.5
    other, _ = SequentialJob("gaussian_linear", "ratio", 2).data()
    assert not torch.equal(theta, other)


def test_errors_see_a_shift_and_a_stretch():
    prior = tasks.get("oup").training_prior("id")
    a, b = priors.sample(prior, 2_000, 0), priors.sample(prior, 2_000, 1)
    none, moved = errors_of(a, b), errors_of(b.mean(0) + 1.5 * (a - b.mean(0)) + 0.5 * b.std(0), b)
    assert none["mean_error"] < 0.12
    assert none["c2st_fast"] < 0.55
    assert abs(moved["mean_error"] - 0.5) < 0.15
    assert abs(moved["sd_error"] - 0.5) < 0.1
    assert moved["c2st_fast"] > 0.57


def test_a_joint_reference_of_one_observation_is_its_reference():
    for name in ("gaussian_linear", "oup"):
        task = tasks.get(name)
        _, x = task.observations("id", 1, seed=3)
        one, other = task.reference(x, 4_000, "id", "training", seed=0), task.joint_reference(x, 4_000, "id", seed=1)
        error = (one.mean(0) - other.mean(0)) / one.std(0)
        assert float(error.abs().max()) < 4 * (2 / 4_000) ** 0.5
        assert float((other.std(0) / one.std(0) - 1).abs().max()) < 4 * (1 / 4_000) ** 0.5
    with pytest.raises(InputError, match="slcp has no reference posterior of several observations"):
        tasks.get("slcp").joint_reference(tasks.get("slcp").observations("id", 2, seed=0)[1], 10, "id")


def test_a_table_and_a_figure_of_records(tmp_path):
    table = Table(tmp_path, "sequential")
    for truth in range(2):
        rows = [
            {"n": n, "verdict": "ok", "mean_error": 0.1 * n + truth, "sd_error": 0.1, "c2st_fast": 0.5} for n in (1, 2)
        ]
        job = SequentialJob("oup", "accumulate", truth, observations=2)
        table.append({"job": job.key, "base": "", "samples": 100, "commit": "abc", "rows": rows})
    rows = summarise(tmp_path, 2)
    assert [row["n"] for row in rows] == [1, 2]
    assert rows[1]["mean_error"] == pytest.approx(0.7)
    assert rows[1]["worst_mean_error"] == pytest.approx(1.2)
    assert rows[0]["truths"] == rows[0]["ok"] == 2
    assert summarise(tmp_path, 3) == summarise(tmp_path, 2, seed=1) == []
    assert draw(rows, tmp_path / "figures" / "s.png").stat().st_size > 10_000


@pytest.mark.parametrize("method", ["accumulate", "ratio", "priorguide_mc"])
def test_every_way_of_updating_runs(method, tmp_path, monkeypatch):
    training = Training(steps=20, batch=256, evaluate_every=20)
    small = {
        "accumulate": Way("accumulate", AccumulateSettings(points=100, checks=10), 500),
        "ratio": Way("ratio", RatioUpdateSettings(training, settings=RatioSettings(observations=4, draws=50)), 500),
        "priorguide_mc": Way(
            "ratio",
            RatioUpdateSettings(training, "priorguide_mc", MonteCarloSettings(draws=2), sampler=Sampler(steps=5)),
            500,
        ),
    }
    monkeypatch.setitem(sequential.WAYS, method, small[method])
    record = execute(SequentialJob("gaussian_linear", method, 0, observations=2), BASES, tmp_path, "abc")
    assert [row["n"] for row in record["rows"]] == [1, 2]
    assert record["rows"][0]["c2st_fast"] < 0.6  # no update yet: the base's own


@pytest.mark.parametrize(("task", "method"), [("slcp", "accumulate"), ("oup", "magic")])
def test_unknown_cells_are_refused(task, method):
    with pytest.raises(InputError, match="allowed"):
        SequentialJob(task, method, 0)
