"""Progress: the time left, plain lines, the live table."""

from __future__ import annotations

import io
import math

import pytest
from fake_cells import FakeCell
from rich.console import Console

from reprior_bench.progress import Progress, time_left


def test_time_left_takes_the_closest_cells_there_are():
    took = {("oup", "base"): [10.0, 20.0], ("turin", "nre"): [100.0]}
    assert time_left(took, [("oup", "base")], 2) == 15.0  # the same cell
    assert time_left(took, [("slcp", "nre")], 1) == 100.0  # the same method elsewhere
    assert time_left(took, [("slcp", "sir")], 1) == pytest.approx(130 / 3)  # any
    assert time_left(took, [("oup", "base")] * 4, 2) == 30.0  # two at a time
    assert time_left(took, [], 2) == 0.0
    assert math.isnan(time_left({}, [("oup", "base")], 2))


def test_plain_lines_without_a_terminal():
    console = Console(file=io.StringIO(), width=200)
    cells = [FakeCell(0), FakeCell(1), FakeCell(2)]
    with Progress(cells, {"cell0"}, 2, console) as progress:
        progress.base("oup-id", "training")
        progress.finished("cell1", 120.0)
        progress.failed("cell2", "it broke [really]")
    lines = console.file.getvalue().splitlines()  # pyright: ignore
    assert lines == [
        "base oup-id: training",
        "[2/3] cell1 (120 s); about 2 min left",
        "[3/3] cell2 FAILED: it broke [really]; about 0 s left",
    ]


def test_a_live_table_on_a_terminal():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    cells = [FakeCell(0), FakeCell(1, regime="ood"), FakeCell(2, regime="ood", method="sir")]
    with Progress(cells, set(), 2, console) as progress:
        progress.finished("cell0", 3.0)
        progress.failed("cell1", "no")
        columns = {c.header: list(c.cells) for c in progress.table().columns}
    assert columns["regime"] == ["id", "ood"]
    assert columns["done"] == ["1", "0"]
    assert columns["failed"] == ["0", "1"]
    assert columns["of"] == ["1", "2"]
    assert columns["left to do"] == ["", "sir"]
    shown = console.file.getvalue()  # pyright: ignore
    assert "Benchmark" in shown
    assert "3 s left" in shown
