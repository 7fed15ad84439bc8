"""Running jobs: on this machine's cores or on a Dask cluster, both through `concurrent.futures`.

On one machine each worker is a process of its own, so that a job whose process dies costs that job and no other. What
failed, or was cut off, is run by the same command again. A base that is missing is trained first, by one worker; an error
there costs the jobs that stand on that base.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from reprior.errors import InputError
from reprior_bench.bases import BaseSpec, fingerprint_of, get_base
from reprior_bench.job import Job, execute
from reprior_bench.store import Table, commit

__all__ = ["cluster", "local", "run"]

Pool = Callable[[], AbstractContextManager[Executor]]


@contextmanager
def local(workers: int) -> Iterator[Executor]:
    """Worker processes on this machine."""
    if workers < 1:
        raise InputError(f"workers must be at least 1; got {workers}")
    pool = _Isolated(workers)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of a Dask cluster. They must see the same folders under the same paths, and have one thread each.

    Arguments:
        address: the scheduler's address, as `dask scheduler` prints it.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("a Dask cluster needs the extra: pip install 'reprior-bench[cluster]'") from error
    try:
        client = Client(address, timeout="20s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address!r}: {error}") from error
    with client, client.get_executor(pure=False) as pool:
        yield pool


def run(
    jobs: Sequence[Job], results: str | Path, bases: str | Path, pool: Pool, tell: Callable[[str], Any] = print
) -> dict[str, str]:
    """Runs the jobs that are not done, keeps a record of each, and returns the errors by the label of the job.

    Arguments:
        jobs: what to measure.
        results: the folder of the tables.
        bases: the folder of the bases; those that are missing are trained and kept there.
        pool: makes the executor: `local` or `cluster`.
        tell: what each line of progress is given to.
    """
    results, bases = Path(results).resolve(), Path(bases).resolve()
    for folder in (results, bases):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder} cannot be a folder for the results: {error}") from None
    tables = {part: Table(results, part) for part in dict.fromkeys(job.part for job in jobs)}
    known = {part: table.records() for part, table in tables.items()}
    todo = [job for job in jobs if not job.done(known[job.part].get(job.name), bases)]
    tell(f"{len(jobs)} jobs, {len(jobs) - len(todo)} done before")
    if not todo:
        return {}
    errors: dict[str, str] = {}
    version = commit()
    with pool() as workers:
        specs = dict.fromkeys(job.base for job in todo if job.base is not None and not job.base.path(bases).exists())
        for spec, _, error in _finished(workers, {s: partial(_train, s, bases) for s in specs}, "bases"):
            tell(f"base {spec.name}: {'failed' if error else 'ready'}")
            if error:
                told = "its base was not trained: " + error
                errors |= {job.label: told for job in todo if job.base == spec}
        ready = [job for job in todo if job.label not in errors]
        work = {job: partial(execute, job, bases, results / "cache", version) for job in ready}
        for job, record, error in _finished(workers, work, "jobs"):
            if error:
                errors[job.label] = error
                tell(f"{job.label} FAILED: {error.strip().splitlines()[-1]}")
            else:
                tables[job.part].append(record)
                tell(f"{job.label} ({record['seconds']:.0f} s)")
    return errors


def _finished(pool: Executor, calls: Mapping[Any, Callable[[], Any]], label: str) -> Iterator[tuple[Any, Any, str]]:
    """Each call as it ends: its key, its result, and its error as text (empty if there is none)."""
    if not calls:
        return
    futures = {pool.submit(call): key for key, call in calls.items()}
    for future in tqdm(as_completed(futures), label, total=len(futures), disable=None):  # no bar outside a terminal
        error = future.exception()
        told = "" if error is None else "".join(traceback.format_exception(error))
        yield futures[future], None if error else future.result(), told


def _train(spec: BaseSpec, folder: Path) -> str:
    import torch

    torch.set_num_threads(1)
    get_base(spec, folder, progress=False)
    return fingerprint_of(spec, folder)


class _Isolated(ThreadPoolExecutor):
    """Threads that each hand their calls to a process of their own; one that dies is replaced for the next call."""

    def __init__(self, workers: int):
        super().__init__(workers)
        self.own = threading.local()
        self.processes: list[ProcessPoolExecutor] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return super().submit(self._call, fn, *args, **kwargs)

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if getattr(self.own, "process", None) is None:
            context = multiprocessing.get_context("spawn")
            self.own.process = ProcessPoolExecutor(1, mp_context=context, initializer=_follow_parent)
            self.processes.append(self.own.process)
        try:
            return self.own.process.submit(function, *arguments, **named).result()
        except BrokenProcessPool as error:
            self.own.process = None
            raise RuntimeError("its process died: it ran out of memory, or was killed") from error

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        for process in self.processes:
            process.shutdown(wait)


def _follow_parent() -> None:
    """Ends a worker whose run was killed: it would go on with its job for nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
