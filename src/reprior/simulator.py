"""Runs a simulator over draws from its prior: in chunks, on any executor, resumable.

The n draws are split into chunks. The theta and random numbers of a chunk depend on the seed and the chunk's number alone.
So the result is the same, bit for bit, in one process, a thread pool, a process pool or a dask cluster, in any order of
completion, and with or without an interruption.

Random numbers reach the simulator in one of two ways:

- it takes a keyword `seed`: it gets an integer of its own for each call (this is the better way);
- it does not: the global random states of torch, numpy and Python follow a seed while a chunk runs, in the process that
  runs it (`reprior.seeds`). Threads share these states, so in one process such chunks run one at a time.

With a folder, each chunk is written there as soon as it is finished (`reprior.store`). A rerun, after a kill, after a
failure or for a larger n, makes only the missing chunks.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from reprior import priors
from reprior.errors import InputError, RepriorError
from reprior.seeds import check_seed, seeded
from reprior.simulations import Simulations, coarse_columns
from reprior.store import Store

__all__ = ["SimulatorError", "simulate"]

_IN_FLIGHT = 256  # chunks submitted to an executor and not yet collected: more would only fill the memory
_global_state = threading.Lock()  # held by whoever draws from the global random states


class SimulatorError(RepriorError, RuntimeError):
    """The simulator failed; the message names the chunk and where the finished ones are."""


def simulate(
    simulator: Callable[..., Any],
    prior: Any,
    n: int,
    *,
    seed: int = 0,
    progress: bool = True,
    folder: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    chunk: int = 1000,
    vectorised: bool = True,
    parameters: Sequence[str] | None = None,
    max_bad_fraction: float = 0.1,
    missing: str = "drop",
) -> Simulations:
    """Draws n parameters from the prior, runs the simulator on them and returns the pairs.

    Arguments:
        simulator: Takes theta, with shape (k, d) when vectorised and (d,) when not, as a float32 tensor, and
            optionally a keyword `seed`; returns one row of data per theta (tensor, array or list). For a
            process pool it must be a function that can be imported.
        prior: The prior p, as `reprior.priors.as_prior` takes it.
        n: Number of simulations.
        seed: Seed of the draws and of the simulator.
        progress: Whether to show a progress bar.
        folder: Where finished chunks are kept, and found again by a later call; None keeps them in memory only. Chunks
            of another prior, seed or chunk size, or of a simulator of another name, are not used. A changed simulator
            of the same name cannot be told from the old one: use a new folder for it.
        executor: Where to run: any `concurrent.futures.Executor`, such as `ProcessPoolExecutor(2)` or dask's
            `client.get_executor()`. None runs here, one chunk after the other. Processes do best with one
            thread each: `ProcessPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,))`.
        chunk: Number of simulations in a chunk.
        vectorised: Whether the simulator takes many theta at once.
        parameters: Names of the parameters, see `Simulations.create`.
        max_bad_fraction: Fraction of rows with NaN or infinity that is tolerated, see `Simulations.create`.
        missing: What NaN in x means, see `Simulations.create`.

    Raises:
        SimulatorError: The simulator raised an error. No further chunk is started; running ones are finished and kept.
        InputError: A setting is unusable, or the simulator returned the wrong number of rows.
    """
    for name, value in (("n", n), ("chunk", chunk)):
        if not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name} is {value!r}: it must be an integer of at least 1.")
    plan = _Plan(simulator, priors.as_prior(prior), int(n), check_seed(seed), int(chunk), vectorised)
    # Refuse before the simulation what `Simulations.create` would refuse after it.
    some = priors.sample(plan.prior, 64, seed=0)
    Simulations.create(some, torch.zeros(len(some), 1), None, parameters, max_bad_fraction, missing)
    store = None if folder is None else Store(folder, "chunk")
    finished = {} if store is None else _kept(store, plan)
    done = sum(len(theta) for theta, _ in finished.values())
    with tqdm(total=plan.n, initial=done, unit="sim", desc="simulate", disable=not progress) as bar:
        for index, theta, x in _run(plan, executor or _Here(), [i for i in range(plan.chunks) if i not in finished]):
            if isinstance(x, BaseException):
                raise _failure(plan, index, x, folder) from x
            if store is not None:
                store.put(plan.key(index), {"theta": theta, "x": x})
            finished[index] = (theta, x)
            bar.update(len(theta))
    theta, x = zip(*(finished[index] for index in range(plan.chunks)), strict=True)
    widths = {rows.shape[1] for rows in x}
    if len(widths) > 1:
        raise InputError(f"the simulator returned rows of different lengths in different chunks: {sorted(widths)}.")
    return Simulations.create(torch.cat(theta), torch.cat(x), plan.prior, parameters, max_bad_fraction, missing)


@dataclass(frozen=True)
class _Plan:
    """What is simulated: everything that the result depends on."""

    simulator: Callable[..., Any]
    prior: Any
    n: int
    seed: int
    chunk: int
    vectorised: bool

    @cached_property
    def prior_key(self) -> Any:
        return priors.key(self.prior)

    @property
    def chunks(self) -> int:
        return -(-self.n // self.chunk)

    def rows(self, index: int) -> range:
        """The row numbers of a chunk."""
        return range(index * self.chunk, min((index + 1) * self.chunk, self.n))

    def theta(self, index: int) -> Tensor:
        """The parameters of a chunk, with shape (k, d). Their seeds lie above all seeds of the simulator."""
        seed = 2**31 + (self._offset(0) + index) % 2**31
        with _global_state:  # a simulator in another thread may be drawing from it
            return priors.sample(self.prior, len(self.rows(index)), seed).to("cpu", torch.float32)

    def simulator_seed(self, index: int) -> int:
        """The simulator's seed for the first row of a chunk; later rows count on from it."""
        return (self._offset(1) + self.rows(index).start) % 2**31

    def _offset(self, stream: int) -> int:
        return int(np.random.SeedSequence([self.seed, stream]).generate_state(1)[0])

    def key(self, index: int) -> dict[str, Any]:
        """All that the result of a chunk depends on. n is not part of it: a larger run has the same first chunks."""
        return {
            "simulator": getattr(self.simulator, "__qualname__", type(self.simulator).__qualname__),
            "prior": self.prior_key,
            "seed": self.seed,
            "chunk": self.chunk,
            "vectorised": self.vectorised,
            "rows": [self.rows(index).start, self.rows(index).stop],
        }


def _kept(store: Store, plan: _Plan) -> dict[int, tuple[Tensor, Tensor]]:
    """The finished chunks of a folder, by their number."""
    finished = {}
    for index in range(plan.chunks):
        file = store.get(plan.key(index))
        if file is not None:
            finished[index] = (file.tensors["theta"], file.tensors["x"])
    if not finished:
        store.warn_if_other(plan.key(0))
    return finished


def _run(plan: _Plan, executor: Executor, todo: list[int]) -> Iterator[tuple[int, Tensor, Tensor | BaseException]]:
    """Yields (number, theta, x) of chunks as they finish; the first failure comes last, with the error in place of x."""
    passes_seed = _takes_seed(plan.simulator)
    limit = 1 if isinstance(executor, _Here) else _IN_FLIGHT
    flying: dict[Future[np.ndarray], tuple[int, Tensor]] = {}
    failed: tuple[int, Tensor, BaseException] | None = None
    queue = iter(todo)
    try:
        while True:
            index = next(queue, None) if failed is None and len(flying) < limit else None
            if index is not None:
                theta, seed = plan.theta(index), plan.simulator_seed(index)
                call = (plan.simulator, theta.numpy(), seed, plan.vectorised, passes_seed)
                try:
                    flying[executor.submit(_simulate_chunk, *call)] = (index, theta)
                except BrokenExecutor as error:  # a worker process has died
                    failed = (index, theta, error)
            elif not flying:
                break
            # While there are chunks to start, only check for finished ones; afterwards wait for them.
            done = wait(flying, None if index is None else 0, FIRST_COMPLETED).done
            for future in sorted(done, key=lambda one: flying[one][0]):  # of two failures, the first chunk is named
                index, theta = flying.pop(future)
                error = future.exception()
                if error is None:
                    yield index, theta, torch.from_numpy(future.result())
                    continue
                failed = failed or (index, theta, error)
                # After a failure: start no more chunks, cancel those that wait for a worker, finish those that run.
                flying = {other: item for other, item in flying.items() if not other.cancel()}
    finally:
        for future in flying:
            future.cancel()
    if failed is not None:
        yield failed


def _failure(plan: _Plan, index: int, error: BaseException, folder: str | os.PathLike[str] | None) -> RepriorError:
    """The error for a failed chunk, which says where finished chunks are kept."""
    rows = plan.rows(index)
    where = (
        "nothing is kept: give a folder to keep finished chunks"
        if folder is None
        else f"finished chunks are kept in {folder}, and a rerun does only the rest"
    )
    return (InputError if isinstance(error, InputError) else SimulatorError)(
        f"the simulator failed in chunk {index} of {plan.chunks}, rows {rows.start} to {rows.stop - 1}: "
        f"{type(error).__name__}: {str(error) or 'no message'} ({where})."
    )


class _Here(Executor):
    """Runs each call at once in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # as every executor: whatever the simulator raises belongs to the future
            future.set_exception(error)
        return future


def _simulate_chunk(
    simulator: Callable[..., Any], theta: np.ndarray, seed: int, vectorised: bool, passes_seed: bool
) -> np.ndarray:
    """Runs one chunk in the worker. Returns an array, because each tensor sent between processes needs a file handle.

    The array is in single precision, unless that would round the data away; `Simulations.create` then warns.
    """
    array = _simulate_rows(simulator, theta, seed, vectorised, passes_seed)
    rounded = array.dtype == np.float64 and coarse_columns(torch.from_numpy(array))
    return array if rounded else array.astype(np.float32, copy=False)


def _simulate_rows(
    simulator: Callable[..., Any], theta: np.ndarray, seed: int, vectorised: bool, passes_seed: bool
) -> np.ndarray:
    parameters = torch.from_numpy(theta.copy())
    if passes_seed:
        if vectorised:
            return _as_rows(simulator(parameters, seed=seed), len(theta))
        rows = [simulator(row, seed=(seed + i) % 2**31) for i, row in enumerate(parameters)]
    else:
        with _global_state, seeded(seed):  # one thread at a time
            if vectorised:
                return _as_rows(simulator(parameters), len(theta))
            rows = [simulator(row) for row in parameters]
    vectors = [_as_array(row).reshape(-1) for row in rows]
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        raise InputError(f"the simulator returned data of different lengths: {sorted(lengths)}.")
    return np.stack(vectors)


def _as_rows(value: Any, n: int) -> np.ndarray:
    """What a vectorised simulator returned, as an array with shape (n, m)."""
    array = _as_array(value)
    if array.ndim == 0 or len(array) != n:
        raise InputError(
            f"the simulator returned shape {array.shape} for {n} parameters: it must return {n} rows. "
            "Pass vectorised=False if it takes one theta at a time."
        )
    return array.reshape(n, -1)


def _as_array(value: Any) -> np.ndarray:
    if value is None:
        raise InputError("the simulator returned None: it must return numbers (NaN where it fails).")
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    elif isinstance(value, list | tuple):
        value = [_as_array(item) for item in value]
    if np.iscomplexobj(value):
        raise InputError("the simulator returned complex numbers: return real and imaginary parts apart.")
    try:
        array = np.asarray(value)
        return array.astype(np.float64 if array.dtype == np.float64 else np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"the simulator returned {type(value).__name__}, not numbers: {error}.") from error


def _takes_seed(simulator: Callable[..., Any]) -> bool:
    """Whether the simulator has a parameter `seed` that can be given by name."""
    try:
        parameter = inspect.signature(simulator).parameters.get("seed")
    except (TypeError, ValueError):  # some compiled functions have no signature
        return False
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return parameter is not None and parameter.kind in by_name
