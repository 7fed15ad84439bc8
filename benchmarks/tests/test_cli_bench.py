"""`reprior-bench`, through the command."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from synthetic import write_records
from typer.testing import CliRunner

from reprior.errors import InputError
from reprior_bench import cli, runner
from reprior_bench.posterior import PosteriorJob
from reprior_bench.store import Table


@contextmanager
def threads(workers: int):
    with ThreadPoolExecutor(workers) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr(runner, "local", threads)
    monkeypatch.setattr(cli.console, "width", 160)


def call(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


def quick(folder, *more: str):
    which = ("--preset", "quick", "--task", "oup", "--regime", "id", "--part", "posterior", "--no-forest")
    return call("run", *which, "--out", str(folder), "--bases", str(folder / "bases"), *more)


def rows_of(path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_a_run_a_second_run_and_its_tables(tmp_path):
    result = quick(tmp_path, "--method", "base", "--seed", "30000")
    assert result.exit_code == 0, result.output
    assert "1 jobs, 0 done before" in result.output
    assert "base oup-id-mlp-quick: ready" in result.output
    rows = rows_of(tmp_path / "seed30000" / "results.csv")
    assert {r["metric"] for r in rows} == {"mmd", "sliced_w2", "rmse", "c2st_fast", "ess"}
    assert {(r["preset"], r["observations"], r["runs"], r["seed"]) for r in rows} == {("quick", "1", "1", "30000")}
    assert "1 jobs, 1 done before" in quick(tmp_path, "--method", "base", "--seed", "30000").output
    page = tmp_path / "page.md"
    page.write_text("<!-- table ess -->\n<!-- end -->\n")
    shown = call("table", "--out", str(tmp_path), "--page", str(page), "--seed", "30000")
    assert shown.exit_code == 0, shown.output
    assert "| OUP | preset quick | 0.957 |" in page.read_text()
    where = ("--out", str(tmp_path), "--bases", str(tmp_path / "bases"), "--seed", "30000")
    drawn = call("figures", "--corner", "oup", *where)
    assert drawn.exit_code == 0, drawn.output
    assert "no corner plot of oup" in drawn.output  # there is a base of preset quick only


def test_seeds_are_kept_apart(tmp_path):
    for seed, value in ((20_000, 0.5), (50_000, 0.6)):
        write_records(tmp_path, "nre", [[value] * 10], seed=seed)
        assert call("table", "--out", str(tmp_path), "--seed", str(seed)).exit_code == 0
        (row,) = [r for r in rows_of(tmp_path / f"seed{seed}" / "results.csv") if r["metric"] == "c2st"]
        assert (float(row["mean"]), row["seed"]) == (value, str(seed))
    assert "0.600" in call("table", "--out", str(tmp_path)).output  # the evaluation seed, where none is asked for


def test_an_error_is_told_at_the_end_with_exit_code_1(tmp_path, monkeypatch):
    def fails(self, bases, cache):
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(PosteriorJob, "measure", fails)
    monkeypatch.setattr(runner, "_train", lambda spec, folder: None)
    result = quick(tmp_path, "--method", "base", "--method", "sir")
    assert result.exit_code == 1
    assert "2 jobs failed; the same command tries them again" in result.output
    assert result.output.count("ZeroDivisionError: nothing to divide by") >= 2


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", stop)
    result = quick(tmp_path, "--method", "base")
    assert result.exit_code == 130
    assert "the same command goes on from here" in result.output


def test_a_trial_stays_out_of_the_results(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "run", lambda jobs, out, bases, *_: asked.append((out, bases)) or {})
    monkeypatch.setattr(cli, "_show_tables", lambda *_: True)
    monkeypatch.chdir(tmp_path)
    for options in (("--preset", "quick"), ("--out", "here"), ()):
        call("run", "--method", "base", *options)
    quick_folder = Path("out/quick")
    bases = cli.RESULTS / "bases"
    assert asked == [(quick_folder, quick_folder / "bases"), (Path("here"), bases), (cli.RESULTS, bases)]


def test_bad_options_are_named(tmp_path):
    result = quick(tmp_path, "--preset", "good")
    assert isinstance(result.exception, InputError)
    assert "preset 'good' is unknown" in str(result.exception)
    empty = call("table", "--out", str(tmp_path), "--seed", "7")
    assert "no records of seed 7" in empty.output
    assert empty.exit_code == 1
    regime = call("figures", "--out", str(tmp_path), "--regime", "far").exception
    assert "regime 'far' is unknown; allowed: id, ood" in str(regime)


def test_evidence_writes_its_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table evidence -->\n<!-- end -->\n")
    result = call("evidence", "--case", "sampler_width", "--out", str(tmp_path), "--page", str(page))
    assert result.exit_code == 0, result.output
    assert [r["regime"] for r in rows_of(tmp_path / "seed50000" / "evidence.csv")] == ["0.02", "0.05", "0.3"]
    assert "sampler_width" in (tmp_path / "seed50000" / "tables" / "evidence.md").read_text()
    assert page.read_text().count("| sampler_width | gaussian |") == 3


def test_errors_of_a_sequential_run_with_nothing_done_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run", lambda *_: {"oup-ratio-0": "InputError: it broke"})
    result = call("sequential", "--task", "oup", "--out", str(tmp_path), "--bases", str(tmp_path))
    assert result.exit_code == 1
    assert "it broke" in result.output


def test_what_was_measured_before_is_shown_without_measuring_it_again(tmp_path, monkeypatch):
    kept = {part: Table(cli.RESULTS, part).path for part in ("samplers", "noise", "sbi", "verdicts", "bases")}
    for path in kept.values():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(runner, "_train", None)
    monkeypatch.setattr(runner, "execute", None)
    for command, shown in (
        (("samplers",), "multistep, SDE"),
        (("noise",), "banana"),
        (("bases",), "gaussian_linear"),
        (("sbi", "--seed", "20000"), "sbi prior_guide"),
        (("verdicts", "--seed", "20000"), "caution or do not trust where c2st_fast > 0.6: 95.5% of 22"),
    ):
        result = call(*command, "--out", str(tmp_path))
        assert result.exit_code == 0, result.output
        assert "done before" in result.output
        assert shown in result.output


def test_two_folders_are_compared(tmp_path):
    for name, value in (("before", 0.5), ("after", 0.55)):
        write_records(tmp_path / name, "nre", [[value] * 10], "c2st_fast", seed=30_000)
    shown = call("compare", str(tmp_path / "before"), str(tmp_path / "after")).output
    assert "0.500" in shown
    assert "0.550" in shown


def test_tasks_are_listed():
    shown = call("tasks").output
    assert "turin_physical" in shown
    assert "none (implicit likelihood)" in shown
