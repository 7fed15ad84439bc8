"""Progress of a grid: a live table on a terminal, plain lines elsewhere, with an estimate of the time left.

The estimate sums, over the cells that are left, the mean time of finished cells of the same method on the same task (of
the same method, or of any cell, where there is none yet), and divides by the number of workers.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

__all__ = ["Progress", "time_left"]


def time_left(took: dict[tuple[str, str], list[float]], left: Sequence[tuple[str, str]], workers: int) -> float:
    """Seconds left; NaN before the first cell is done.

    Arguments:
        took: seconds of finished cells by (task, method).
        left: (task, method) of the cells that are left.
        workers: how many run at once.
    """
    every = [s for seconds in took.values() for s in seconds]
    if not left or not every:
        return 0.0 if not left else float("nan")
    by_method: dict[str, list[float]] = defaultdict(list)
    for (_, method), seconds in took.items():
        by_method[method] += seconds
    each = [fmean(took.get((task, method)) or by_method.get(method) or every) for task, method in left]
    return sum(each) / min(workers, len(left))


class Progress:
    """Shows how far a grid is.

    Arguments:
        cells: all cells of the grid.
        done: how many of them were done before, by name.
        workers: how many run at once.
        console: where to show it.
    """

    def __init__(self, cells: Sequence[Any], done: set[str], workers: int, console: Console):
        self.cells = {c.name: c for c in cells}
        self.state = {name: ("done" if name in done else "") for name in self.cells}
        self.took: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.workers, self.console, self.began = workers, console, time.monotonic()
        self.training: set[str] = set()
        self.live = Live(self.table(), console=console, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> Progress:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.update(self.table(), refresh=True)
            self.live.stop()

    def finished(self, name: str, seconds: float) -> None:
        """A cell is done."""
        cell = self.cells[name]
        self.took[cell.task, cell.method].append(seconds)
        self._set(name, "done", f"{name} ({seconds:.0f} s)")

    def failed(self, name: str, why: str) -> None:
        """A cell ended with an error."""
        self._set(name, "failed", f"{name} FAILED: {why}")

    def base(self, name: str, state: str) -> None:
        """A base is being trained ("training"), or is ready or failed."""
        (self.training.add if state == "training" else self.training.discard)(name)
        self._show(f"base {name}: {state}")

    def _set(self, name: str, state: str, line: str) -> None:
        self.state[name] = state
        count = sum(bool(s) for s in self.state.values())
        self._show(f"[{count}/{len(self.cells)}] {line}; {self.left()}")

    def _show(self, line: str) -> None:
        if self.live is not None:
            self.live.update(self.table())
        else:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def left(self) -> str:
        """The time left, in words."""
        open_cells = [(c.task, c.method) for name, c in self.cells.items() if not self.state[name]]
        seconds = time_left(self.took, open_cells, self.workers)
        if seconds != seconds:
            return "time left not known yet"
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"

    def table(self) -> Table:
        """The state as a table: a row per task, regime and preset."""
        elapsed = time.monotonic() - self.began
        caption = f"{elapsed / 60:.0f} min so far, {self.left()}"
        if self.training:
            caption += f"; training {', '.join(sorted(self.training))}"
        table = Table(title="Benchmark", caption=caption)
        for column in ("task", "regime", "preset", "done", "failed", "of", "left to do"):
            table.add_column(column, no_wrap=column != "left to do")
        groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for name, c in self.cells.items():
            groups[c.task, c.regime, c.preset].append(name)
        for key, names in groups.items():
            states = [self.state[name] for name in names]
            methods = dict.fromkeys(self.cells[name].method for name in names if not self.state[name])
            counts = (states.count("done"), states.count("failed"), len(names))
            table.add_row(*key, *map(str, counts), ", ".join(methods))
        return table
