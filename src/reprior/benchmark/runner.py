"""Running a grid of cells: on this machine's cores, or on a Dask cluster, through one `concurrent.futures` interface.

Each cell writes its own result, so a killed run goes on where it stopped, and a cell that was lost with a worker is
run again; none is run twice at once. Bases are trained first: the cells that share one wait for it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console

from reprior.benchmark.bases import BaseSpec, get_base, one_thread
from reprior.benchmark.cells import Cell, run_cell

__all__ = ["local_executor", "run_grid", "submit"]


def local_executor(workers: int) -> Executor:
    """Processes of one torch thread each."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=one_thread)


def _make_base(spec: BaseSpec, folder: str) -> str:
    one_thread()
    get_base(spec, folder, progress=False)
    return spec.name


def run_grid(
    cells: Sequence[Cell],
    folder: str | Path,
    bases: str | Path,
    executor: Executor,
    console: Console | None = None,
) -> list[Path]:
    """Runs cells that are not done yet; shows progress with the time left.

    Arguments:
        cells: what to run.
        folder: where results go.
        bases: where base posteriors are, or go.
        executor: any `concurrent.futures` executor.
        console: where progress is shown.
    """
    console = console or Console()
    folder, bases = Path(folder), Path(bases)
    todo = [c for c in cells if not (folder / "cells" / f"{c.name}.json").exists()]
    specs = list(dict.fromkeys(c.base for c in todo))
    missing = [s for s in specs if not (bases / f"{s.name}.safetensors").exists()]
    console.print(f"{len(cells)} cells, {len(cells) - len(todo)} done before; {len(missing)} bases to train")
    submit(executor, _make_base, [(s, str(bases)) for s in missing], [s.name for s in missing], console)
    submit(executor, run_cell, [(c, str(folder), str(bases)) for c in todo], [c.name for c in todo], console)
    return [folder / "cells" / f"{c.name}.json" for c in cells]


def submit(executor: Executor, work: Callable, arguments: list[tuple], names: list[str], console: Console) -> None:
    """Runs work on each of the arguments, and shows what is done and the time left."""
    began = time.monotonic()
    futures: dict[Future, str] = {
        executor.submit(work, *args): name for args, name in zip(arguments, names, strict=True)
    }
    for done, future in enumerate(as_completed(futures), start=1):
        future.result()  # an error in a cell is an error of the run; what is done stays done
        left = (time.monotonic() - began) / done * (len(futures) - done)
        console.print(f"[{done}/{len(futures)}] {futures[future]}  about {left / 60:.0f} min left", markup=False)
