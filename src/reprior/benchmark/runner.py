"""Running a grid of cells: on this machine's cores, or on a Dask cluster, through one `concurrent.futures` interface.

Each cell writes its own record once, so a killed run goes on where it stopped and nothing is counted twice. A base that
is missing is trained first, by one worker; the cells that stand on it follow, while other cells run. An error in a cell
(or in a base) costs that cell (the cells of that base) and no other; a worker process that dies costs nothing: Dask
hands its cell to another worker, and a broken process pool is made anew.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from reprior.benchmark.bases import BaseSpec, get_base, one_thread
from reprior.benchmark.progress import Progress
from reprior.errors import InputError

__all__ = ["GridCell", "cluster_executor", "local_executor", "run_grid"]

POOLS = 4  # process pools that are tried, one after another, before a run gives up


class GridCell(Protocol):
    """What the runner needs of a cell."""

    @property
    def task(self) -> str: ...
    @property
    def regime(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def base(self) -> BaseSpec | None: ...
    def done(self, folder: Path) -> bool: ...
    def execute(self, folder: Path, bases: Path) -> Path: ...


@contextmanager
def local_executor(workers: int) -> Iterator[tuple[Executor, int]]:
    """Processes of one torch thread each, and their number."""
    if workers < 1:
        raise InputError(f"workers must be at least 1; got {workers}")
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=one_thread)
    try:
        yield pool, workers
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def cluster_executor(address: str) -> Iterator[tuple[Executor, int]]:
    """The workers of a Dask cluster, and their number. They must see the same folders under the same paths.

    Arguments:
        address: the scheduler's address, as `dask scheduler` prints it; start workers with one thread each.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("a Dask cluster needs the extra: pip install 'reprior[cluster]'") from error
    try:
        client = Client(address, timeout="20s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address!r}: {error}") from error
    try:
        threads: Any = client.nthreads()
        workers = sum(threads.values())
        if workers == 0:
            raise InputError(f"the Dask scheduler at {address!r} has no workers")
        with client.get_executor(pure=False) as executor:
            yield executor, workers
    finally:
        client.close()


def run_grid(
    cells: Sequence[GridCell],
    folder: str | Path,
    bases: str | Path,
    executor: Callable[[], AbstractContextManager[tuple[Executor, int]]],
    console: Console | None = None,
) -> dict[str, str]:
    """Runs the cells that are not done, shows progress, and returns the errors by the name of their cell.

    Arguments:
        cells: what to run.
        folder: where results go.
        bases: where base posteriors are, or go.
        executor: makes a `concurrent.futures` executor and says how many workers it has.
        console: where progress is shown.
    """
    console = console or Console()
    folder, bases = Path(folder).resolve(), Path(bases).resolve()
    before = {c.name for c in cells if c.done(folder)}
    todo = {c.name: c for c in cells if c.name not in before}
    console.print(f"{len(cells)} cells, {len(before)} done before")
    errors: dict[str, str] = {}
    for attempt in range(POOLS):
        left = [c for name, c in todo.items() if name not in errors and not c.done(folder)]
        if not left:
            break
        with executor() as (pool, workers):
            done = {c.name for c in cells if c.done(folder)}
            with Progress(cells, done, workers, console) as progress:
                errors |= _Round(left, folder, bases, pool, progress).run(last=attempt == POOLS - 1)
    return errors


class _Round:
    """One executor's work, until all is done or the executor breaks."""

    def __init__(self, cells: list[Any], folder: Path, bases: Path, pool: Executor, progress: Progress):
        self.folder, self.bases, self.pool, self.progress = folder, bases, pool, progress
        self.waiting: dict[BaseSpec, list[Any]] = defaultdict(list)
        self.futures: dict[Future, Any] = {}
        self.errors: dict[str, str] = {}
        self.ready: list[Any] = []
        for cell in cells:
            spec: BaseSpec | None = cell.base
            if spec is None or (bases / f"{spec.name}.safetensors").exists():
                self.ready.append(cell)
            else:
                self.waiting[spec].append(cell)

    def run(self, last: bool) -> dict[str, str]:
        """Runs everything; on a broken pool it returns early, or with an error for each open cell if it is the last."""
        try:
            for spec in self.waiting:
                self.progress.base(spec.name, "training")
                self.futures[self.pool.submit(_make_base, spec, self.bases)] = spec
            for cell in self.ready:
                self._submit(cell)
            while self.futures:
                finished, _ = wait(self.futures, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._take(self.futures.pop(future), future)
        except BrokenProcessPool as error:
            if last:
                cells = [*self.ready, *(c for group in self.waiting.values() for c in group)]
                left = [c.name for c in cells if c.name not in self.errors and not c.done(self.folder)]
                self.errors |= dict.fromkeys(left, f"worker processes kept dying: {error}")
        return self.errors

    def _submit(self, cell: Any) -> None:
        self.futures[self.pool.submit(_execute, cell, self.folder, self.bases)] = cell

    def _take(self, what: Any, future: Future) -> None:
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise error
        if isinstance(what, BaseSpec):
            self.progress.base(what.name, "ready" if error is None else "failed")
            for cell in self.waiting.pop(what):
                if error is None:
                    self.ready.append(cell)
                    self._submit(cell)
                else:
                    self._fail(cell.name, error, "its base was not trained: ")
        elif error is not None:
            self._fail(what.name, error)
        else:
            self.progress.finished(what.name, future.result())

    def _fail(self, name: str, error: BaseException, before: str = "") -> None:
        self.errors[name] = before + "".join(traceback.format_exception(error))
        self.progress.failed(name, f"{before}{type(error).__name__}: {error}")


def _make_base(spec: BaseSpec, folder: Path) -> None:
    one_thread()
    get_base(spec, folder, progress=False)


def _execute(cell: GridCell, folder: Path, bases: Path) -> float:
    one_thread()
    began = time.monotonic()
    cell.execute(folder, bases)
    return time.monotonic() - began
