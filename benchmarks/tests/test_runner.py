"""The runner: errors stay in their cell, killed runs and killed workers lose and double nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from fake_cells import FakeCell, starts_of
from rich.console import Console

from reprior_bench import runner
from reprior_bench.runner import cluster_executor, local_executor, run_grid
from reprior.errors import InputError


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@contextmanager
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool, 2


def records(folder) -> dict[str, dict]:
    return {p.stem: json.loads(p.read_text()) for p in (folder / "cells").glob("*.json")}


def test_an_error_in_one_cell_loses_no_other_and_is_told(tmp_path):
    cells = [FakeCell(0), FakeCell(1, "fail"), FakeCell(2)]
    console = quiet()
    errors = run_grid(cells, tmp_path, tmp_path, threads, console)
    assert set(records(tmp_path)) == {"cell0", "cell2"}
    assert list(errors) == ["cell1"]
    assert "cell1 divides by zero" in errors["cell1"]
    shown = console.file.getvalue()  # pyright: ignore
    assert "cell1 FAILED: ZeroDivisionError" in shown
    assert "[3/3]" in shown


def test_a_second_run_does_only_what_is_left(tmp_path):
    cells = [FakeCell(0), FakeCell(1, "fail"), FakeCell(2)]
    run_grid(cells, tmp_path, tmp_path, threads, quiet())
    before = {name: (tmp_path / "cells" / f"{name}.json").stat().st_mtime_ns for name in records(tmp_path)}
    repaired = [FakeCell(0), FakeCell(1), FakeCell(2)]
    console = quiet()
    assert run_grid(repaired, tmp_path, tmp_path, threads, console) == {}
    assert "3 cells, 2 done before" in console.file.getvalue()  # pyright: ignore
    assert set(records(tmp_path)) == {"cell0", "cell1", "cell2"}
    for name, when in before.items():
        assert (tmp_path / "cells" / f"{name}.json").stat().st_mtime_ns == when


def test_a_base_that_fails_costs_its_own_cells_only(tmp_path, monkeypatch):
    made = []

    def make(spec, folder):
        made.append(spec.name)
        if spec.task == "slcp":
            raise RuntimeError("no memory")

    monkeypatch.setattr(runner, "_make_base", make)
    cells = [
        FakeCell(0, task="slcp", needs_base=True),
        FakeCell(1, task="slcp", needs_base=True),
        FakeCell(2, task="oup", needs_base=True),
        FakeCell(3, task="oup", needs_base=True),
        FakeCell(4, task="turin"),
    ]
    errors = run_grid(cells, tmp_path, tmp_path, threads, quiet())
    assert sorted(made) == ["oup-id-mlp-best-1", "slcp-id-mlp-best-1"]  # each once, whatever the number of cells
    assert sorted(errors) == ["cell0", "cell1"]
    assert "its base was not trained" in errors["cell0"]
    assert set(records(tmp_path)) == {"cell2", "cell3", "cell4"}


def test_a_worker_process_that_dies_loses_nothing(tmp_path):
    # The pool breaks with it; the cells that were open are run in a new one.
    cells = [FakeCell(0), FakeCell(1, "die"), FakeCell(2), FakeCell(3)]
    errors = run_grid(cells, tmp_path, tmp_path, partial(local_executor, 1), quiet())
    assert errors == {}
    assert len(records(tmp_path)) == 4
    assert len(starts_of(tmp_path, cells[1])) == 2


def test_a_cell_that_always_kills_its_process_costs_no_other(tmp_path):
    cells = [FakeCell(0, "kill"), *(FakeCell(i) for i in range(1, 8))]
    errors = run_grid(cells, tmp_path, tmp_path, partial(local_executor, 2), quiet())
    assert list(errors) == ["cell0"]
    assert "its worker process died" in errors["cell0"]
    assert set(records(tmp_path)) == {f"cell{i}" for i in range(1, 8)}


def test_a_machine_on_which_every_process_dies_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "POOLS", 2)
    cells = [FakeCell(i, "kill") for i in range(20)]
    errors = run_grid(cells, tmp_path, tmp_path, partial(local_executor, 1), quiet())
    assert len(errors) == 20
    assert "2 pools of worker processes in a row died" in errors["cell19"]


def test_a_dask_cluster_loses_and_doubles_nothing_when_a_worker_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed")
    cells = [FakeCell(i, seconds=1.0 if i < 2 else 0.2) for i in range(10)]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        result: dict[str, str] = {"not": "finished"}

        def work() -> None:
            executor = partial(cluster_executor, cluster.scheduler_address)
            result.clear()
            result.update(run_grid(cells, tmp_path, tmp_path, executor, quiet()))

        thread = threading.Thread(target=work)
        thread.start()
        deadline = time.monotonic() + 60
        while not all(starts_of(tmp_path, c) for c in cells[:2]) and time.monotonic() < deadline:
            time.sleep(0.02)
        victim = starts_of(tmp_path, cells[0])[0]  # in the middle of cell 0
        assert not cells[0].done(tmp_path)
        os.kill(victim, signal.SIGKILL)
        thread.join(60)
        assert not thread.is_alive()
    assert result == {}
    found = records(tmp_path)
    assert sorted(found) == sorted(c.name for c in cells)  # nothing lost
    assert sorted(r["number"] for r in found.values()) == list(range(10))
    assert len(starts_of(tmp_path, cells[0])) == 2  # the killed one was run again, by another process
    assert found["cell0"]["pid"] != victim
    assert [c.name for c in cells[1:] if len(starts_of(tmp_path, c)) > 2] == []
    assert list((tmp_path / "cells").glob(".*")) == []  # no half-written record is left


def test_no_scheduler_is_said_in_one_line(monkeypatch):
    distributed = pytest.importorskip("distributed")

    def refuse(*_, **__):
        raise OSError("timed out")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        cluster_executor("tcp://127.0.0.1:1").__enter__()


def test_no_workers_are_refused():
    with pytest.raises(InputError, match="workers must be at least 1"):
        local_executor(0).__enter__()


def test_workers_end_with_a_run_that_is_killed(tmp_path):
    script = tmp_path / "long_run.py"
    script.write_text(
        "import time\n"
        "from reprior_bench.runner import local_executor\n"
        "if __name__ == '__main__':\n"
        "    with local_executor(1) as (pool, _):\n"
        "        pool.submit(print, 'at work', flush=True).result()\n"
        "        pool.submit(time.sleep, 600).result()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "at work\n"
        run.kill()
        run.communicate(timeout=60)  # returns once nobody holds the pipe, the worker included
