"""Measurements are kept as they are made, and not made twice."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from reprior.benchmark.base_quality import collect, noise_kinds, samplers
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
