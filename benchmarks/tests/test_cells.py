"""A slice of the quick benchmark, through real cells."""

from __future__ import annotations

import json
import re

import pytest
import torch

from reprior_bench import tasks
from reprior_bench import cells
from reprior_bench.bases import MLP_RECIPES, get_base, mark_of
from reprior_bench.cells import METRICS, Cell, measure, reference_of
from reprior.networks.fit import Training
from reprior.errors import InputError
from reprior.networks.mlp import MLPSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("quick")


def small(method: str, **change) -> Cell:
    return Cell("two_moons", "id", method, observations=2, samples=200, slow=False, quick=True, **change)


def test_a_slice_of_the_quick_benchmark(folder):
    for method in ("base", "auto"):
        path = small(method).execute(folder, folder / "bases")
        record = json.loads(path.read_text())
        assert record["refused"] == ""
        assert len(record["rows"]) == 2
        assert set(METRICS) - {"c2st"} <= set(record["rows"][0])
        assert all(0.3 < row["c2st_fast"] <= 1 for row in record["rows"])
        assert record["chosen"] == ("none" if method == "base" else "rejuvenate")
    assert [p.name for p in (folder / "bases").iterdir()] == ["two_moons-id-mlp-best-quick.safetensors"]


def test_a_done_cell_is_left_alone_and_a_missing_metric_is_added(folder):
    cell = small("base")
    path = cell.execute(folder, folder / "bases")
    before = path.stat().st_mtime_ns
    assert cell.execute(folder, folder / "bases").stat().st_mtime_ns == before
    asked = Cell(**{**vars(cell), "slow": True})
    assert cell.done(folder)
    assert not asked.done(folder)  # the forest was left out
    old = json.loads(path.read_text())["rows"]
    asked.execute(folder, folder / "bases")
    new = json.loads(path.read_text())["rows"]
    assert asked.done(folder)
    assert [row["rmse"] for row in new] == [row["rmse"] for row in old]  # the same seeds, the same samples


def test_a_record_with_all_metrics_is_not_replaced_by_one_that_came_later(tmp_path, monkeypatch):
    fast = small("base")
    slow = Cell(**{**vars(fast), "slow": True})

    def measured(self, folder, bases):
        if not self.slow:  # while this one was at work, another process finished the other
            slow.execute(folder, bases)
        rows = [{"observation": 0, "c2st_fast": 0.5} | ({"c2st": 0.5} if self.slow else {})]
        return {"base": "", "why": "", "chosen": "none", "adapt_seconds": 0.0, "rows": rows}

    monkeypatch.setattr(Cell, "_measure", measured)
    fast.execute(tmp_path, tmp_path)
    assert slow.done(tmp_path)


def test_a_method_that_refuses_says_why(folder):
    # The change of Two Moons ID is correlated: it needs a base with full noise, and this one has one level per parameter.
    record = json.loads(small("transport").execute(folder, folder / "bases").read_text())
    assert record["rows"] == []
    assert "noise" in record["refused"]


def test_an_error_is_no_refusal(folder, monkeypatch):
    def fail(*arguments, **named):
        raise InputError("all weights are zero")

    monkeypatch.setattr(cells, "adapt", fail)
    cell = small("sir")
    with pytest.raises(InputError, match="all weights are zero"):
        cell.execute(folder, folder / "bases")
    assert not cell.done(folder)  # the same command tries it again


def test_a_base_of_another_recipe_is_refused(folder, monkeypatch):
    spec = small("base").base
    get_base(spec, folder / "bases", progress=False)
    mark = mark_of(spec, folder / "bases")
    assert re.fullmatch("[0-9a-f]{12}", mark)
    monkeypatch.setitem(MLP_RECIPES, "two_moons", (MLPSettings(width=17), Training()))
    with pytest.raises(InputError, match="was trained with other settings than this version's recipe"):
        get_base(spec, folder / "bases")


def test_references_are_kept_by_their_observation(tmp_path):
    _, x = tasks.get("oup").observations("id", 2, seed=1)
    first = reference_of("oup", "id", 5, 0, 100, x[0], tmp_path)
    assert torch.equal(first, reference_of("oup", "id", 5, 0, 100, x[0], tmp_path))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    other = reference_of("oup", "id", 5, 0, 100, x[1], tmp_path)  # the same place, another observation
    assert not torch.equal(first, other)


def test_samples_that_are_not_finite_give_nan():
    good = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[3, 1] = torch.inf
    values = measure(bad, good, torch.zeros(2), slow=True)
    assert set(values) == set(METRICS)
    assert all(v != v for v in values.values())


def test_bad_cells_are_refused():
    with pytest.raises(InputError, match="method 'magic' is unknown"):
        Cell("oup", "id", "magic")
    with pytest.raises(InputError, match="method 'none' is unknown; allowed: base"):
        Cell("oup", "id", "none")  # one name for one thing
    with pytest.raises(InputError, match="samples >= 100"):
        Cell("oup", "id", "nre", samples=10)
    with pytest.raises(InputError, match="1 to 999 observations"):
        Cell("oup", "id", "nre", observations=1_000)  # its seeds would be those of the next run
    with pytest.raises(InputError, match="seed >= 0; got 10, 5000 and -1"):
        Cell("oup", "id", "nre", seed=-1)
    with pytest.raises(InputError, match="preset paper stands on network='simformer'; got 'mlp'"):
        _ = Cell("oup", "id", "nre", preset="paper").name
