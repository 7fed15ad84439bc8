"""The comparison with sbi's prior_guide: what it measures, and that a run goes through."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from reprior import cli, cli_bench, priors
from reprior.errors import InputError
from reprior.io import read_rows, write_rows
from reprior_bench import sbi_comparison, tasks
from reprior_bench.sbi_comparison import METHODS, NETWORK, Comparison, Row, compare, judge, npse, run, summary


def test_errors_are_in_posterior_sds():
    generator = torch.Generator().manual_seed(0)
    exact = torch.tensor([1.0, 5.0]) * torch.randn(5_000, 2, generator=generator)
    other = torch.tensor([1.0, 5.0]) * torch.randn(5_000, 2, generator=generator)
    mean_error, sd_error, c2st = judge(other, exact)
    # Standard errors: sqrt(2/n) = .02 for a difference of means, .014 for a ratio of sds.
    assert mean_error < 0.06
    assert sd_error < 0.045
    assert abs(c2st - 0.5) < 0.03
    mean_error, sd_error, c2st = judge(torch.tensor([0.5, 2.5]) + 2 * other, exact)
    assert mean_error == pytest.approx(0.5, abs=0.1)
    assert sd_error == pytest.approx(1.0, abs=0.06)
    assert c2st > 0.6
    assert judge(exact.fill_(torch.nan), other)[2] == 1.0


def test_run_and_files(tmp_path):
    """Tiny, and untrained in effect: the figures mean nothing, the rows and files do."""
    settings = Comparison((("two_moons", "id"),), 300, 2, 2, 200, 8, 20)
    rows = compare("two_moons", "id", settings, tmp_path)
    assert [row.method for row in rows] == [NETWORK, "no change"] * 2 + [m for m in METHODS[1:] for _ in range(2)]
    assert all(row.samples == 200 and row.c2st_fast >= 0.3 for row in rows)
    write_rows([asdict(row) for row in rows], tmp_path / "rows.csv")
    assert [Row.parse(row) for row in read_rows(tmp_path / "rows.csv")] == rows
    assert [row["method"] for row in summary(rows)] == [NETWORK, *METHODS]
    # A second run takes the network from the file.
    task, path = tasks.get("two_moons"), tmp_path / "npse-two_moons-id.safetensors"
    kept = npse(task, "id", settings, path)
    x = task.simulate(priors.sample(task.training_prior("id"), 1, seed=3), seed=4)[0]
    torch.testing.assert_close(kept.sample((5,), x, seed=0), npse(task, "id", settings, path).sample((5,), x, seed=0))


def test_a_killed_comparison_goes_on(tmp_path, monkeypatch):
    ran = []

    def fake(name, regime, settings, folder, tag):
        ran.append((name, regime))
        if len(ran) == 2:
            raise KeyboardInterrupt
        return [Row(name, regime, 0, "reprior", 8, 200, 0.1, 0.2, 0.5, 1.0, 2.0)]

    monkeypatch.setattr(sbi_comparison, "compare", fake)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, tmp_path)
    rows = run(tmp_path, tmp_path)
    pairs = list(Comparison().pairs)
    assert [(row.task, row.regime) for row in rows] == pairs
    assert ran == [pairs[0], pairs[1], *pairs[1:]]  # the interrupted one again, the first one not


def test_averages_and_settings():
    made = [Row("t", "id", k, m, 40, 10, k + 1.0, 0.0, 0.5, 1.0, 2.0) for m in METHODS for k in range(2)]
    assert summary(made)[0] == {
        "task": "t",
        "q": "id",
        "method": "no change",
        "mean": 1.5,
        "sd": 0.0,
        "c2st": 0.5,
        "s": 3.0,
    }
    with pytest.raises(InputError, match="at least 2 steps"):
        Comparison(steps=1)


def test_the_command_prints_all_of_the_table_in_80_columns(tmp_path, monkeypatch):
    made = [
        Row("gaussian_linear", "ood", k, m, 100, 5_000, k + 1.0, 0.25, 0.5, 31.0, 2.0)
        for m in (NETWORK, *METHODS)
        for k in range(2)
    ]
    monkeypatch.setattr(sbi_comparison, "compare", lambda *a, **k: made)
    monkeypatch.setattr(cli_bench, "console", Console(width=80))
    options = ["bench", "sbi", "--quick", "--out", str(tmp_path / "new"), "--folder", str(tmp_path / "npse")]
    result = CliRunner().invoke(cli.app, options)
    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    row = next(line for line in result.output.splitlines() if "prior_guide" in line)
    assert all(text in row for text in ("gaussian_linear", "ood", "1.500", "0.250", "0.500", "33.0"))
    assert (tmp_path / "new" / "sbi_comparison-quick.csv").exists()
