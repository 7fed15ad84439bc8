"""A slice of the quick preset, through real jobs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from reprior.adapted import AdaptedPosterior
from reprior.errors import InputError
from reprior.networks.mlp import MLPSettings
from reprior_bench import posterior, tasks
from reprior_bench.bases import fingerprint_of, get_base
from reprior_bench.job import execute
from reprior_bench.posterior import METRICS, PosteriorJob, distances, reference_of
from reprior_bench.tasks.base import Recipe
from reprior_bench.tasks.two_moons import TwoMoons


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("quick")


def small(method: str, **change) -> PosteriorJob:
    return PosteriorJob("two_moons", "id", method, "quick", observations=2, samples=200, forest=False, **change)


def record_of(job: PosteriorJob, folder) -> dict:
    return execute(job, folder / "bases", folder / "cache", "abc1234")


def test_jobs_of_the_quick_preset(folder):
    for method in ("base", "auto"):
        record = record_of(small(method), folder)
        assert record["refused"] == ""
        assert record["job"]["seed"] == 50_000
        assert [set(METRICS) - {"c2st"} <= set(row) for row in record["rows"]] == [True, True]
        assert all(0.3 < row["c2st_fast"] <= 1 for row in record["rows"])
        assert all(0 < row["ess"] <= 1 for row in record["rows"])
        assert record["chosen"] == ("none" if method == "base" else "rejuvenate")
    assert [p.name for p in (folder / "bases").glob("*.safetensors")] == ["two_moons-id-mlp-quick.safetensors"]


def test_a_missing_metric_is_asked_for_again_with_the_same_samples(folder):
    job, bases = small("base"), folder / "bases"
    record = record_of(job, folder)
    asked = replace(job, forest=True)
    assert job.done(record, bases)
    assert not asked.done(record, bases)
    assert asked.name == job.name  # it takes the place of the other in the table
    full = record_of(asked, folder)
    assert asked.done(full, bases)
    assert job.done(full, bases)
    assert [row["rmse"] for row in full["rows"]] == [row["rmse"] for row in record["rows"]]


def test_a_method_that_refuses_says_why(folder):
    # The change of Two Moons ID is correlated: it needs a base with full noise, and this one has one level per parameter.
    record = record_of(small("transport"), folder)
    assert record["rows"] == []
    assert "noise" in record["refused"]


def test_an_observation_that_cannot_be_drawn_costs_no_other(folder, monkeypatch):
    whole = AdaptedPosterior.sample_batched

    def some(self, shape, x, **named):
        samples, info = whole(self, shape, x=x, **named)
        if not torch.equal(x[0], first):
            return samples, info
        return samples * torch.nan, replace(info, failed={0: "no mass"})

    first = tasks.get("two_moons").observations("id", 2, seed=50_000)[1][0]
    monkeypatch.setattr(AdaptedPosterior, "sample_batched", some)
    bad, good = record_of(small("sir"), folder)["rows"]
    assert bad["failed"] == "no mass"
    assert bad["c2st_fast"] != bad["c2st_fast"]
    assert "failed" not in good
    assert 0.4 < good["c2st_fast"] < 1


def test_an_error_is_no_refusal(folder, monkeypatch):
    def fail(*arguments, **named):
        raise InputError("all weights are zero")

    monkeypatch.setattr(posterior.reprior, "adapt", fail)
    with pytest.raises(InputError, match="all weights are zero"):
        record_of(small("sir"), folder)


def test_a_base_of_another_recipe_is_refused(folder, monkeypatch):
    spec = small("base").base
    assert spec is not None
    get_base(spec, folder / "bases")
    assert re.fullmatch("[0-9a-f]{12}", fingerprint_of(spec, folder / "bases"))
    other = Recipe(MLPSettings(width=17), spec.recipe().training)
    monkeypatch.setattr(TwoMoons, "recipes", {"mlp": other})
    with pytest.raises(InputError, match="was trained with other settings than those of its task now"):
        get_base(spec, folder / "bases")


def test_references_are_kept_by_their_observation(tmp_path):
    _, x = tasks.get("oup").observations("id", 2, seed=1)
    first = reference_of("oup", "id", 5, 0, 100, x[0], tmp_path)
    assert torch.equal(first, reference_of("oup", "id", 5, 0, 100, x[0], tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    other = reference_of("oup", "id", 5, 0, 100, x[1], tmp_path)  # the same place, another observation
    assert not torch.equal(first, other)


def test_samples_that_are_not_finite_give_nan():
    good = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[3, 1] = torch.inf
    values = distances(bad, good, torch.zeros(2), forest=True)
    assert set(values) == set(METRICS)
    assert all(v != v for v in values.values())


def test_bad_jobs_are_refused():
    with pytest.raises(InputError, match="method 'magic' is unknown"):
        PosteriorJob("oup", "id", "magic")
    with pytest.raises(InputError, match="method 'none' is unknown; allowed: base"):
        PosteriorJob("oup", "id", "none")  # one name for one thing
    with pytest.raises(InputError, match="samples >= 100"):
        PosteriorJob("oup", "id", "nre", samples=10)
    with pytest.raises(InputError, match="1 to 999 observations"):
        PosteriorJob("oup", "id", "nre", observations=1_000)  # its seeds would be those of the next run
    with pytest.raises(InputError, match="seed >= 0; got 10, 5000 and -1"):
        PosteriorJob("oup", "id", "nre", seed=-1)
