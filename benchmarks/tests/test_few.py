"""The benchmark of few simulations: exact widths against draws, and a table that goes on where it stopped."""

from __future__ import annotations

import pytest
import torch

from reprior.errors import InputError
from reprior.io import read_rows
from reprior_bench import few
from reprior_bench.few import Problem


def test_exact_widths_of_the_linear_problem_are_those_of_its_gaussian():
    problem = Problem("linear", 7)
    theta, x = problem.simulate(60_000, 1)
    # The best linear prediction of theta leaves the posterior's own spread open.
    solution = torch.linalg.lstsq(x, theta).solution
    spread = (theta - x @ solution).std(0)
    torch.testing.assert_close(problem.exact_widths(x[:2])[0], 2 * 1.6449 * spread, rtol=0.01, atol=0)


@pytest.mark.parametrize("name", few.PROBLEMS)
def test_exact_intervals_do_not_depend_on_the_number_of_entries(name):
    one, two = Problem(name, 5), Problem(name, 40)
    seen = torch.tensor([[0.5, -0.2, 1.1]])
    widths = [p.exact_widths(seen @ p.directions.T) for p in (one, two)]
    torch.testing.assert_close(widths[0], widths[1], rtol=0.02, atol=0)


def test_exact_widths_of_the_curved_problem_against_rejection():
    problem = Problem("curved", 5)
    seen = torch.tensor([0.6, 0.4, 1.2])
    theta = torch.randn(2_000_000, 3, generator=torch.Generator().manual_seed(2))
    log_l = -(problem.signal(theta) - seen).square().sum(1) / (2 * problem.noise)
    kept = theta[torch.rand(len(theta), generator=torch.Generator().manual_seed(3)) < log_l.exp()]
    assert len(kept) > 10_000
    width = kept.quantile(0.95, dim=0) - kept.quantile(0.05, dim=0)
    torch.testing.assert_close(
        problem.exact_widths((problem.directions @ seen).unsqueeze(0))[0], width, rtol=0.04, atol=0
    )


def test_the_table_goes_on_where_it_stopped(tmp_path, monkeypatch):
    asked = []

    def measure(name, n, entries, seed, progress):
        asked.append((name, n, entries, seed))
        return {"held_1": 0.9}

    monkeypatch.setattr(few, "measure", measure)
    path = tmp_path / "few.csv"
    assert len(list(few.measure_cells(path, ["linear:300:100"], 2))) == 2
    assert len(list(few.measure_cells(path, ["linear:300:100", "curved:200:5"], 2))) == 4
    assert asked == [("linear", 300, 100, 0), ("linear", 300, 100, 1), ("curved", 200, 5, 0), ("curved", 200, 5, 1)]
    assert len(read_rows(path)) == 4


def test_a_cell_that_is_none_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cell 'cubic:10:10' is not problem:n:m"):
        list(few.measure_cells(tmp_path / "few.csv", ["cubic:10:10"], 1))
