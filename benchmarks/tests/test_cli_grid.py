"""`reprior bench run`, `table`, `figures` and `evidence`, through the command."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from reprior import cli
from reprior_bench import runner
from reprior_bench.bases import BaseSpec, get_base
from reprior_bench.cells import Cell
from reprior.errors import InputError


@contextmanager
def threads(workers: int):
    with ThreadPoolExecutor(workers) as pool:
        yield pool, workers


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr(runner, "local_executor", threads)


def call(*arguments: str):
    return CliRunner().invoke(cli.app, ["bench", *arguments], env={"COLUMNS": "160"})


def quick(folder, *more: str):
    which = ("--task", "oup", "--regime", "id", "--part", "posterior", "--fast")
    return call("run", "--quick", *which, "--out", str(folder), "--bases", str(folder / "bases"), *more)


def test_a_run_a_second_run_and_its_tables(tmp_path):
    result = quick(tmp_path, "--method", "base")
    assert result.exit_code == 0, result.output
    assert "1 cells, 0 done before" in result.output
    assert "base oup-id-mlp-best-quick: ready" in result.output
    with (tmp_path / "results.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert {r["metric"] for r in rows} == {"mmd", "sliced_w2", "rmse", "c2st_fast", "ess"}
    assert {(r["preset"], r["observations"], r["runs"], r["seed"]) for r in rows} == {("best-quick", "1", "1", "20000")}
    again = quick(tmp_path, "--method", "base")
    assert "1 cells, 1 done before" in again.output
    page = tmp_path / "page.md"
    page.write_text("<!-- table ess -->\n<!-- end -->\n")
    shown = call("table", str(tmp_path), "--page", str(page))
    assert shown.exit_code == 0, shown.output
    assert "| OUP | preset best-quick | 0.957 |" in page.read_text()
    drawn = call("figures", str(tmp_path), "--bases", str(tmp_path / "bases"), "--corner", "oup")
    assert drawn.exit_code == 0, drawn.output
    assert "no corner plot of oup" in " ".join(drawn.output.split())  # there is a quick base only


def test_an_error_is_told_at_the_end_with_exit_code_1(tmp_path, monkeypatch):
    def fails(self, folder, bases):
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(Cell, "execute", fails)
    monkeypatch.setattr(runner, "_make_base", lambda spec, folder: None)
    result = quick(tmp_path, "--method", "base", "--method", "sir")
    assert result.exit_code == 1
    assert "2 cells failed; the same command tries them again" in result.output
    assert result.output.count("ZeroDivisionError: nothing to divide by") >= 2


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_grid", stop)
    result = quick(tmp_path, "--method", "base")
    assert result.exit_code == 130
    assert "the same command goes on from here" in result.output


def test_bad_options_are_named(tmp_path):
    result = quick(tmp_path, "--preset", "good")
    assert isinstance(result.exception, InputError)
    assert "preset 'good' is unknown" in str(result.exception)
    empty = call("table", str(tmp_path))
    assert "no finished cells" in empty.output
    assert empty.exit_code == 1
    regime = call("figures", str(tmp_path), "--regime", "far").exception
    assert "regime 'far' is unknown; allowed: id, ood" in str(regime)


def test_a_trial_stays_out_of_the_evidence(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "run_grid", lambda cells, out, bases, *_: asked.append((str(out), str(bases))) or {})
    monkeypatch.chdir(tmp_path)
    call("run", "--quick")
    call("run", "--method", "base")
    assert asked == [("out/quick", "out/quick/bases"), ("results", "results/bases")]


def test_records_of_another_base_are_not_taken_for_done(tmp_path):
    assert quick(tmp_path, "--method", "base").exit_code == 0
    path = tmp_path / "bases" / "oup-id-mlp-best-quick.safetensors"
    path.unlink()
    get_base(BaseSpec("oup", "ood", quick=True), tmp_path, progress=False)
    (tmp_path / "oup-ood-mlp-best-quick.safetensors").rename(path)
    told = str(quick(tmp_path, "--method", "base").exception)
    assert "oup-id-mlp-best-quick-base-run0-1x500-seed20000" in told
    assert "stands on another base" in told


def test_a_folder_that_cannot_be_is_said_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be a folder for the results" in str(quick(tmp_path / "file").exception)


def test_evidence_writes_its_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table evidence -->\n<!-- end -->\n")
    result = call("evidence", "--case", "sampler_width", "--out", str(tmp_path), "--page", str(page))
    assert result.exit_code == 0, result.output
    with (tmp_path / "evidence.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [r["regime"] for r in rows] == ["0.02", "0.05", "0.3"]
    assert "sampler_width" in (tmp_path / "tables" / "evidence.md").read_text()
    assert page.read_text().count("| sampler_width | gaussian |") == 3


def test_errors_of_a_sequential_run_with_nothing_done_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_grid", lambda *_: {"oup-ratio-0": "InputError: it broke"})
    result = call("sequential", "--task", "oup", "--out", str(tmp_path), "--folder", str(tmp_path))
    assert result.exit_code == 1
    assert "it broke" in result.output
