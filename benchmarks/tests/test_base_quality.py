"""Measurements are kept as they are made, and not made twice."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from reprior import io
from reprior_bench.base_quality import base_quality, collect, noise_kinds, samplers
from reprior_bench.bases import BaseSpec
from reprior.diffusion.denoiser import NOISE_KINDS


def jobs(counted: list[str], names: str) -> list:
    def measure(name: str) -> dict:
        if name == "x":
            raise KeyboardInterrupt
        counted.append(name)
        return {"value": len(counted)}

    return [({"name": name}, lambda name=name: measure(name)) for name in names]


def test_an_interrupted_measurement_goes_on_where_it_stopped(tmp_path):
    counted: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        collect(jobs(counted, "abx"), tmp_path / "rows.csv", tell=lambda _: None)
    assert counted == ["a", "b"]
    rows = collect(jobs(counted, "abc"), tmp_path / "rows.csv", tell=lambda _: None)
    assert counted == ["a", "b", "c"]
    assert [int(r["value"]) for r in rows] == [1, 2, 3]
    with (tmp_path / "rows.csv").open() as handle:
        assert [r["name"] for r in csv.DictReader(handle)] == ["a", "b", "c"]


def test_a_base_that_was_trained_again_is_measured_again(tmp_path):
    def of(base: str, value: int) -> list:
        return [({"name": "a", "base": base}, lambda: {"base": base, "value": value})]

    path = tmp_path / "rows.csv"
    collect(of("first", 1), path, tell=lambda _: None)
    collect([({"name": "b", "base": "other"}, lambda: {"value": 2})], path, tell=lambda _: None)
    assert collect(of("first", 3), path, tell=lambda _: None)[0]["value"] == "1"
    collect(of("second", 4), path, tell=lambda _: None)
    with path.open() as handle:
        rows = {r["name"]: (r["base"], r["value"]) for r in csv.DictReader(handle)}
    assert rows == {"a": ("second", "4"), "b": ("other", "2")}


def test_a_job_is_known_by_the_base_on_disk(tmp_path):
    spec = BaseSpec("two_moons", "id", quick=True)
    assert base_quality([spec], tmp_path)[0][0]["base"] == ""
    io.write(spec.path(tmp_path), "posterior", {"a": torch.zeros(2)}, {})
    first = base_quality([spec], tmp_path)[0][0]
    io.write(spec.path(tmp_path), "posterior", {"a": torch.ones(2)}, {})
    assert first["base"]
    assert base_quality([spec], tmp_path)[0][0]["base"] not in ("", first["base"])


def test_only_the_rows_asked_for_come_back(tmp_path):
    counted: list[str] = []
    collect(jobs(counted, "ab"), tmp_path / "rows.csv", tell=lambda _: None)
    assert [r["name"] for r in collect(jobs(counted, "b"), tmp_path / "rows.csv", tell=lambda _: None)] == ["b"]


def test_every_kind_of_noise_is_measured_in_every_dimension():
    keys = [key for key, _ in noise_kinds(10)]
    assert {(k["d"], k["noise"]) for k in keys} == {(d, n) for d in (2, 5, 6, 20) for n in NOISE_KINDS}


def test_samplers_are_compared_at_equal_evaluations():
    folder = Path(__file__).parents[2] / "results" / "bases"
    keys = [key for key, _ in samplers("two_moons", "id", folder)]
    counts = {k["evaluations"]: {j["sampler"] for j in keys if j["evaluations"] == k["evaluations"]} for k in keys}
    assert all(len(kinds) == 4 for kinds in counts.values())
