"""From records to rows: averages, spread, the best group and what stays outside it."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from synthetic import write_records, write_refusal

from reprior.io import write_rows
from reprior_bench.paper import paper_values
from reprior_bench.tables import COLUMNS, refusals, summarise

OBSERVED = np.linspace(0.5, 0.6, 10)


def find(rows, method, metric="c2st", **where):
    found = [r for r in rows if r["method"] == method and r["metric"] == metric]
    found = [r for r in found if all(r[k] == v for k, v in where.items())]
    assert len(found) == 1
    return found[0]


def test_mean_and_spread_are_over_observations_of_the_run_average(tmp_path):
    runs = [list(OBSERVED), list(OBSERVED + 0.3), list(OBSERVED + 0.6)]
    write_records(tmp_path, "nre", runs)
    row = find(summarise(tmp_path), "nre")
    assert row["mean"] == pytest.approx(OBSERVED.mean() + 0.3)
    assert row["std"] == pytest.approx(OBSERVED.std(ddof=1))  # the spread between runs is averaged out
    assert (row["observations"], row["runs"], row["seed"], row["commit"]) == (10, 3, 50_000, "abc1234")


def test_the_best_group_is_paired_by_observation_and_leaves_references_out(tmp_path):
    # Worse by .001 for every observation: tiny against the spread, but certain when paired (p = 1/1024).
    write_records(tmp_path, "auto", [list(OBSERVED)])
    write_records(tmp_path, "nre", [list(OBSERVED + 0.001)])
    mixed = OBSERVED + 0.002 * np.array([1, -1] * 5)
    write_records(tmp_path, "kliep", [list(mixed)])
    write_records(tmp_path, "sir", [list(OBSERVED - 0.1)])
    rows = summarise(tmp_path)
    assert find(rows, "auto")["in_best_group"] == 1
    assert find(rows, "nre")["in_best_group"] == 0
    assert find(rows, "kliep")["in_best_group"] == 1
    assert find(rows, "sir")["in_best_group"] == 0  # the lowest, and outside the ranking


def test_a_trial_of_another_size_does_not_take_the_place_of_the_papers(tmp_path):
    for method, gap in (("auto", 0.0), ("nre", 0.001)):
        write_records(tmp_path, method, [list(OBSERVED + gap)])
    write_records(tmp_path, "auto", [[0.9] * 11], samples=100)
    rows = summarise(tmp_path)
    assert (find(rows, "auto")["observations"], find(rows, "auto")["samples"]) == (10, 5_000)
    assert find(rows, "auto")["in_best_group"] == 1


def test_presets_networks_and_counts_are_not_mixed(tmp_path):
    write_records(tmp_path, "nre", [list(OBSERVED)])
    write_records(tmp_path, "nre", [list(OBSERVED - 0.1)], preset="paper")
    write_records(tmp_path, "nre", [[0.9]], preset="quick")
    write_records(tmp_path, "nre", [[0.7, 0.8]])
    rows = [r for r in summarise(tmp_path) if r["metric"] == "c2st"]
    assert len(rows) == 3
    assert find(rows, "nre", preset="quick")["mean"] == 0.9
    assert find(rows, "nre", preset="paper")["network"] == "simformer"
    assert math.isnan(find(rows, "nre", preset="quick")["std"])
    assert find(rows, "nre", preset="best")["observations"] == 10  # the two of another record are not added
    assert not any(r["in_best_group"] for r in rows)  # each alone: the best of nothing


def test_a_sampler_that_diverged_is_shown_and_not_ranked(tmp_path):
    write_records(tmp_path, "wsm", [[math.nan, *OBSERVED[1:]]])
    write_records(tmp_path, "nre", [list(OBSERVED)])
    rows = summarise(tmp_path)
    assert math.isnan(find(rows, "wsm")["mean"])
    assert find(rows, "wsm")["in_best_group"] == 0
    assert find(rows, "nre")["in_best_group"] == 1


def test_records_of_another_seed_are_another_table(tmp_path):
    write_records(tmp_path, "nre", [list(OBSERVED)])
    write_records(tmp_path, "nre", [list(OBSERVED - 0.2)], seed=30_000)
    assert find(summarise(tmp_path), "nre")["mean"] == pytest.approx(OBSERVED.mean())
    assert find(summarise(tmp_path, seed=30_000), "nre")["mean"] == pytest.approx(OBSERVED.mean() - 0.2)


def test_methods_are_ranked_by_the_runs_that_all_have(tmp_path):
    # By run 0 nre is better for every observation; the second run of auto must not decide.
    write_records(tmp_path, "nre", [list(OBSERVED)])
    write_records(tmp_path, "auto", [list(OBSERVED + 0.01), list(OBSERVED - 0.1)])
    rows = summarise(tmp_path)
    assert find(rows, "nre")["in_best_group"] == 1
    assert find(rows, "auto")["in_best_group"] == 0
    assert find(rows, "auto")["mean"] == pytest.approx(OBSERVED.mean() - 0.045)


def test_fewer_observations_take_no_part_in_the_ranking(tmp_path):
    write_records(tmp_path, "nre", [list(OBSERVED)])
    write_records(tmp_path, "wsm", [list(OBSERVED + 0.1)])
    write_records(tmp_path, "kliep", [[0.5, 0.5]])
    rows = summarise(tmp_path)
    assert find(rows, "nre")["in_best_group"] == 1
    assert find(rows, "kliep")["in_best_group"] == 0


def test_the_forest_ranks_only_where_it_has_judged_all(tmp_path):
    values = {"c2st": list(OBSERVED), "c2st_fast": list(OBSERVED)}
    write_records(tmp_path, "nre", [values["c2st"]], more=values)
    write_records(tmp_path, "wsm", [list(OBSERVED + 0.1)], metric="c2st_fast")
    rows = summarise(tmp_path)
    assert find(rows, "nre", "c2st_fast")["in_best_group"] == 1
    assert find(rows, "nre", "c2st")["in_best_group"] == 0


def test_different_bases_under_one_name_are_told(tmp_path):
    write_records(tmp_path, "nre", [list(OBSERVED)], base="aaaa")
    write_records(tmp_path, "wsm", [list(OBSERVED)], base="aaaa")
    assert find(summarise(tmp_path), "nre")["note"] == ""
    write_records(tmp_path, "auto", [list(OBSERVED)], base="bbbb")
    assert find(summarise(tmp_path), "nre")["note"] == "methods stand on different bases"


def test_a_run_without_a_metric_is_not_counted_for_it(tmp_path):
    write_records(tmp_path, "nre", [list(OBSERVED)])
    write_records(tmp_path, "nre", [[], list(OBSERVED)], metric="c2st_fast", observations=10, skip=1)
    row = find(summarise(tmp_path), "nre")
    assert (row["runs"], row["mean"]) == (1, pytest.approx(OBSERVED.mean()))


def test_a_metric_that_no_run_has_is_left_out(tmp_path):
    write_records(tmp_path, "nre", [list(OBSERVED)], metric="c2st_fast")
    rows = summarise(tmp_path)
    assert [r["metric"] for r in rows] == ["c2st_fast", "ess"]


def test_refusals_are_kept_apart(tmp_path):
    write_refusal(tmp_path, "transport", "log q/p is not quadratic")
    write_records(tmp_path, "nre", [list(OBSERVED)])
    assert refusals(tmp_path) == {("oup", "id", "best", "mlp", "posterior", "transport"): "log q/p is not quadratic"}
    assert {r["method"] for r in summarise(tmp_path)} == {"nre"}


def test_the_csv_has_the_columns_in_order(tmp_path):
    write_records(tmp_path, "nre", [list(OBSERVED)])
    path = write_rows(summarise(tmp_path), tmp_path / "results.csv", digits=4)
    with path.open() as handle:
        rows = list(csv.DictReader(handle))
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["mean"] == "0.5500"


def test_the_figures_of_the_paper():
    # A few entries, read off its tables.
    paper = paper_values()
    assert paper["two_moons", "id", "priorguide", "c2st"] == (0.68, 0.01)
    assert paper["gaussian_linear", "ood", "analytic", "rmse"] == (0.34, 0.04)
    assert paper["two_moons", "id", "base", "sliced_w2"] == (0.68, 0.43)
    assert paper["turin", "ood", "wsm", "predict_rmse"] == (10.84, 1.86)
    assert paper["turin", "ood", "base", "ess"][0] == 0.006
    # 6 methods on 5 tasks in 2 regimes and analytic on one task, 4 metrics; the predictive part; ESS.
    assert len(paper) == 4 * (60 + 2) + 24 + 10
