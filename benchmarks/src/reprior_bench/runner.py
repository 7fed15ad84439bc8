"""Running a grid of cells: on this machine's cores, or on a Dask cluster, through one `concurrent.futures` interface.

Each cell writes its own record once, so a killed run goes on where it stopped and nothing is counted twice. A base that
is missing is trained first, by one worker; the cells that stand on it follow, while other cells run. An error in a cell
(or in a base) costs that cell (the cells of that base) and no other; a worker process that dies costs nothing: Dask
hands its cell to another worker, and a broken process pool is made anew. From then on no more jobs are handed out than
there are workers; those that were at work when a pool broke come last and alone, and one that breaks its pool alone has
failed.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
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

from reprior_bench.bases import BaseSpec, get_base, one_thread
from reprior_bench.progress import Progress
from reprior.errors import InputError

__all__ = ["GridCell", "cluster_executor", "local_executor", "run_grid"]

POOLS = 6  # process pools in a row that break with no job finished, before a run gives up


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
    """Processes of one torch thread each, which end when this one ends, however it does; and their number."""
    if workers < 1:
        raise InputError(f"workers must be at least 1; got {workers}")
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker)
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
    for needed in (folder, bases):
        try:
            needed.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{needed} cannot be a folder for the results: {error}") from None
    before = {c.name for c in cells if c.done(folder)}
    todo = {c.name: c for c in cells if c.name not in before}
    console.print(f"{len(cells)} cells, {len(before)} done before")
    errors: dict[str, str] = {}
    suspects: set[str] = set()
    broken = in_vain = 0
    while left := [c for name, c in todo.items() if name not in errors and not c.done(folder)]:
        if in_vain == POOLS:
            why = f"{POOLS} pools of worker processes in a row died with no job finished"
            return errors | dict.fromkeys((c.name for c in left), why)
        with executor() as (pool, workers):
            done = {c.name for c in cells if c.done(folder)}
            with Progress(cells, done, workers, console) as progress:
                work = _Round(left, folder, bases, pool, progress, suspects, workers if broken else 0)
                errors |= work.run()
        broken += work.broken
        in_vain = in_vain + 1 if work.broken and work.finished == 0 else 0
    return errors


Job = Any  # a cell, or the BaseSpec of a base that is missing


class _Round:
    """One executor's work, until all is done or the executor breaks.

    Arguments:
        cells: what is to be done.
        folder: where results go.
        bases: where base posteriors are, or go.
        pool: the executor.
        progress: what is shown.
        suspects: names of jobs that were at work when an executor broke; added to here.
        most: how many jobs are handed out at once; 0 for all.
    """

    def __init__(
        self,
        cells: list[Any],
        folder: Path,
        bases: Path,
        pool: Executor,
        progress: Progress,
        suspects: set[str],
        most: int,
    ):
        self.folder, self.bases, self.pool, self.progress = folder, bases, pool, progress
        self.suspects, self.most = suspects, most
        self.waiting: dict[BaseSpec, list[Any]] = defaultdict(list)
        self.futures: dict[Future, Job] = {}
        self.errors: dict[str, str] = {}
        self.finished, self.broken = 0, False
        ready: list[Job] = []
        for cell in cells:
            spec: BaseSpec | None = cell.base
            if spec is None or spec.path(bases).exists():
                ready.append(cell)
            else:
                self.waiting[spec].append(cell)
        self.queue: list[Job] = [*self.waiting, *ready]

    def run(self) -> dict[str, str]:
        """Runs everything, and returns the errors by the name of the cell; it returns early where the pool breaks."""
        try:
            self._hand_out()
            while self.futures:
                finished, _ = wait(self.futures, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._take(future)
                self._hand_out()
        except BrokenProcessPool as error:
            self.broken = True
            self._accuse(error)
        return self.errors

    def _hand_out(self) -> None:
        """Hands out as many jobs as may be at work: those under suspicion last, and alone."""
        self.queue.sort(key=lambda job: job.name in self.suspects)  # stable
        while self.queue and not (self.most and len(self.futures) >= self.most):
            job = self.queue[0]
            alone = job.name in self.suspects
            if alone and self.futures:
                return
            if isinstance(job, BaseSpec):
                self.progress.base(job.name, "training")
                future = self.pool.submit(_make_base, job, self.bases)
            else:
                future = self.pool.submit(_execute, job, self.folder, self.bases)
            self.futures[future] = self.queue.pop(0)
            if alone:
                return

    def _accuse(self, error: BaseException) -> None:
        """Who broke the pool: a job that was alone; else all that were at work are under suspicion."""
        if not self.most:  # all were handed out: no telling
            return
        at_work = [job for future, job in self.futures.items() if not future.done() or future.exception() is not None]
        if len(at_work) == 1 and at_work[0].name in self.suspects:
            self._fail(at_work[0], error, "its worker process died: ")
        self.suspects.update(job.name for job in at_work)

    def _take(self, future: Future) -> None:
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise error
        job = self.futures.pop(future)
        if error is not None:
            self._fail(job, error)
            return
        self.finished += 1
        if isinstance(job, BaseSpec):
            self.progress.base(job.name, "ready")
            self.queue += self.waiting.pop(job)
        else:
            self.progress.finished(job.name, future.result())

    def _fail(self, job: Job, error: BaseException, before: str = "") -> None:
        cells = [job]
        if isinstance(job, BaseSpec):
            self.progress.base(job.name, "failed")
            cells, before = self.waiting.pop(job), f"its base was not trained: {before}"
        for cell in cells:
            self.errors[cell.name] = before + "".join(traceback.format_exception(error))
            self.progress.failed(cell.name, f"{before}{type(error).__name__}: {error}")


def _begin_worker() -> None:
    """One torch thread, and an end to a worker whose run was killed: it would go on with its cell for nobody."""
    one_thread()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _make_base(spec: BaseSpec, folder: Path) -> None:
    one_thread()
    get_base(spec, folder, progress=False)


def _execute(cell: GridCell, folder: Path, bases: Path) -> float:
    one_thread()
    began = time.monotonic()
    cell.execute(folder, bases)
    return time.monotonic() - began
