"""The Markdown tables: ours beside the paper's, fewer observations told, pages filled between their marks."""

from __future__ import annotations

import numpy as np
from synthetic import write_records, write_refusal

from reprior_bench.markdown import evidence_table, fill, write_tables
from reprior_bench.tables import refusals, summarise

OBSERVED = np.linspace(0.5, 0.6, 10)


def lines_of(path, method):
    return [line for line in path.read_text().splitlines() if line.startswith((f"| {method} |", f"| *{method}* |"))]


def test_ours_stands_beside_the_papers(tmp_path):
    full = [list(OBSERVED)] * 3
    write_records(tmp_path, "nre", full)
    write_records(tmp_path, "auto", [list(OBSERVED - 0.04)] * 3)
    write_records(tmp_path, "sir", full)
    write_refusal(tmp_path, "transport", "no")
    paths = {p.stem: p for p in write_tables(summarise(tmp_path), tmp_path / "tables", refusals(tmp_path))}
    assert set(paths) == {"summary", "c2st"}
    # method | ID: paper's | ID: preset best | OOD: paper's | OOD: preset best
    assert lines_of(paths["c2st"], "nre") == ["| nre | 0.51 (0.01) | 0.550 (0.034) | 0.54 (0.05) |  |"]
    assert lines_of(paths["c2st"], "auto") == ["| auto |  | **0.510 (0.034)** |  |  |"]
    assert lines_of(paths["c2st"], "transport") == ["| transport |  | refuses |  |  |"]
    assert lines_of(paths["c2st"], "sir")[0].startswith("| *sir* | 0.68 (0.01) | 0.550")
    assert "| OUP | id | 0.51 | 0.510 (0.034) |  |  |" in paths["summary"].read_text()


def test_fewer_observations_or_runs_are_told(tmp_path):
    write_records(tmp_path, "nre", [[0.5, 0.6]])
    path = write_tables(summarise(tmp_path), tmp_path / "tables")[1]
    assert "0.550 (0.071) [2 obs., 1 run]" in lines_of(path, "nre")[0]


def test_ess_and_predictive_tables(tmp_path):
    write_records(tmp_path, "base", [list(OBSERVED)] * 3)
    write_records(tmp_path, "base", [list(OBSERVED)] * 3, "predict_rmse", "predictive")
    paths = {p.stem: p for p in write_tables(summarise(tmp_path), tmp_path / "tables")}
    assert "| OUP | preset best | 0.957 | 0.500 (0.000) | 0.487 |  |" in paths["ess"].read_text()
    assert lines_of(paths["predict_rmse"], "base")[0].startswith("| base | 0.54 (0.10) | 0.550 (0.034) |")


def test_a_page_is_filled_between_its_marks_and_again(tmp_path):
    page = tmp_path / "results.md"
    page.write_text(
        "# Results\n\n<!-- table a -->\n<!-- end -->\n\nText.\n\n<!-- table absent -->\nold\n<!-- end -->\n"
    )
    (tmp_path / "a.md").write_text("## Title\n\n| x |\n")
    assert fill(page, tmp_path) == ["a"]
    first = page.read_text()
    assert "<!-- table a -->\n\n### Title\n\n| x |\n\n<!-- end -->\n\nText." in first
    assert "old" not in first  # nothing stands behind it any more
    fill(page, tmp_path)
    assert page.read_text() == first


def test_the_table_of_the_evidence(tmp_path):
    row = {"case": "no_change", "task": "gaussian_linear", "regime": "id", "mean": 0.53, "std": 0.01}
    row |= {"paper": 0.73, "paper_row": "base", "observations": 10}
    text = evidence_table([row], tmp_path).read_text()
    assert "| no_change | Gaussian Linear | id | 0.530 (0.010) | 0.73 | base | 10 |" in text


def test_a_table_without_rows_is_removed(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "predict_rmse.md").write_text("of records that are gone")
    write_records(tmp_path, "nre", [[0.5, 0.6]])
    write_tables(summarise(tmp_path), tmp_path / "tables")
    assert not (tmp_path / "tables" / "predict_rmse.md").exists()


def test_fewer_samples_are_told(tmp_path):
    write_records(tmp_path, "nre", [[0.5] * 10] * 3, samples=1_000)
    write_tables(summarise(tmp_path), tmp_path / "tables")
    assert "0.500 (0.000) [10 obs., 3 runs, 1,000 samples]" in (tmp_path / "tables" / "c2st.md").read_text()


def test_methods_on_the_same_base_stand_in_one_line(tmp_path):
    write_records(tmp_path, "nre", [[0.5, 0.6]], metric="c2st_fast")
    write_records(tmp_path, "base", [[0.7, 0.8]], metric="c2st_fast", regime="ood")
    write_tables(summarise(tmp_path), tmp_path / "tables")
    text = (tmp_path / "tables" / "same_base.md").read_text()
    assert "| OUP | boosted trees | - / 0.750 | - / - | - / - | 0.550 / - | - / - |" in text


def test_a_sampler_that_diverged_is_told_in_few_digits(tmp_path):
    write_records(tmp_path, "nre", [[2e9] * 10] * 3, metric="rmse")
    write_tables(summarise(tmp_path), tmp_path / "tables")
    assert "2.0e+09 (0.000)" in (tmp_path / "tables" / "rmse.md").read_text()


def test_preset_paper_stands_beside_the_paper(tmp_path):
    write_records(tmp_path, "nre", [[0.5, 0.6, 0.7]], preset="paper")
    write_records(tmp_path, "kliep", [[0.9]])  # of preset best: not here
    write_tables(summarise(tmp_path), tmp_path / "tables")
    text = (tmp_path / "tables" / "preset_paper.md").read_text()
    assert "| task | regime | base | priorguide | wsm | nre | kliep | *sir* | *analytic* |" in text
    assert "| OUP | id | - / 0.52 | - / 0.53 | - / 0.55 | 0.600 / 0.51 | - / 0.51 | - / 0.68 |  |" in text
