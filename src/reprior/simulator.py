"""Runs a simulator over draws from its prior: in chunks, on any executor, resumable.

The n draws are cut into chunks. A chunk's theta and random numbers follow from (seed, position) alone, so the
result is the same bit for bit in one process, a thread pool, a process pool or a dask cluster, in any order
of completion, and with or without an interruption.

Random numbers reach the simulator in one of two ways:

- it takes a keyword `seed`: it gets an integer of its own for each call (this is the better way);
- it does not: the global seeds of torch, numpy and random are set before each chunk in the process that runs
  it, and put back after. Threads share that global state, so in one process such chunks run one at a time.

Given a folder, each finished chunk is written there at once, and a rerun after a kill or a failure does only
what is left.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from reprior import io, priors
from reprior.errors import InputError, RepriorError
from reprior.simulations import Simulations, coarse_columns

__all__ = ["SimulatorError", "simulate"]

_IN_FLIGHT = 256  # chunks handed to an executor and not yet collected
_MAX_FAILURES = 3  # failed chunks after which no more are started
_PRIOR_PROBE = 8  # draws that tell one prior from another
_global_state = threading.Lock()


class SimulatorError(RepriorError, RuntimeError):
    """The simulator failed; the message names the chunk and where the finished ones are."""


def simulate(
    simulator: Callable[..., Any],
    prior: Any,
    n: int,
    executor: Executor | None = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    chunk: int = 1000,
    vectorised: bool = True,
    progress: bool = True,
    *,
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
        executor: Where to run: any `concurrent.futures.Executor`, such as `ProcessPoolExecutor(2)` or dask's
            `client.get_executor()`. None runs here, one chunk after the other. Processes do best with one
            thread each: `ProcessPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,))`.
        seed: Seed of the draws and of the simulator.
        folder: Where finished chunks are kept for a rerun; None keeps them in memory only. It belongs to one
            run: another prior, n, seed, chunk, or a simulator of another name, is refused. A changed
            simulator of the same name cannot be told: use a new folder.
        chunk: Number of simulations in a chunk.
        vectorised: Whether the simulator takes many theta at once.
        progress: Whether to show a progress bar.
        parameters: Names of the parameters, see `Simulations.create`.
        max_bad_fraction: Share of rows with NaN or infinity that is tolerated, see `Simulations.create`.
        missing: What NaN in x means, see `Simulations.create`.

    Raises:
        SimulatorError: The simulator raised. With a folder, the other chunks are run and kept (up to three
            failures).
        InputError: A setting is unusable, the folder belongs to another run, or the simulator returned the
            wrong number of rows.
    """
    for name, value, least in (("n", n, 1), ("chunk", chunk, 1), ("seed", seed, 0)):
        if not isinstance(value, Integral) or value < least:
            raise InputError(f"{name} is {value!r}: it must be an integer of at least {least}.")
    plan = _Plan(simulator, priors.as_prior(prior), int(n), int(seed), int(chunk), vectorised)
    # Before anything is simulated: what `Simulations.create` would refuse after it.
    some = priors.sample(plan.prior, _PRIOR_PROBE, seed=0)
    Simulations.create(some, torch.zeros(len(some), 1), None, parameters, max_bad_fraction, missing)
    store = None if folder is None else Path(folder)
    finished = {} if store is None else _resume(store, plan)
    _run(plan, executor or _Here(), store, finished, progress)
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

    @property
    def chunks(self) -> int:
        return -(-self.n // self.chunk)

    def rows(self, index: int) -> range:
        """The row numbers of a chunk."""
        return range(index * self.chunk, min((index + 1) * self.chunk, self.n))

    def theta(self, index: int) -> Tensor:
        """The parameters of a chunk, with shape (k, d). Their seeds lie above all seeds of the simulator."""
        seed = 2**31 + (self._offset(0) + index) % 2**31
        # Priors draw from torch's global state, which a simulator in another thread may be using.
        with _global_state:
            return priors.sample(self.prior, len(self.rows(index)), seed).to("cpu", torch.float32)

    def simulator_seed(self, index: int) -> int:
        """The simulator's seed for the first row of a chunk; later rows count on from it."""
        return (self._offset(1) + self.rows(index).start) % 2**31

    def _offset(self, stream: int) -> int:
        return int(np.random.SeedSequence([self.seed, stream]).generate_state(1)[0])

    def settings(self) -> dict[str, Any]:
        """The settings that a folder belongs to."""
        name = getattr(self.simulator, "__qualname__", type(self.simulator).__qualname__)
        return {
            "n": self.n,
            "seed": self.seed,
            "chunk": self.chunk,
            "vectorised": self.vectorised,
            "simulator": name,
        }


def _run(
    plan: _Plan,
    executor: Executor,
    store: Path | None,
    finished: dict[int, tuple[Tensor, Tensor]],
    progress: bool,
) -> None:
    """Runs the chunks that are not finished and adds them; keeps a bounded number in flight."""
    todo = iter([index for index in range(plan.chunks) if index not in finished])
    passes_seed = _takes_seed(plan.simulator)
    limit = 1 if isinstance(executor, _Here) else _IN_FLIGHT
    flying: dict[Future[np.ndarray], tuple[int, Tensor]] = {}
    failures: dict[int, BaseException] = {}
    # Without a folder nothing outlives a failure, so there is no reason to go on after the first.
    patience = 1 if store is None else _MAX_FAILURES
    done_rows = sum(len(plan.rows(index)) for index in finished)
    try:
        with tqdm(total=plan.n, initial=done_rows, unit="sim", desc="simulate", disable=not progress) as bar:
            while True:
                may_start = len(flying) < limit and len(failures) < patience
                index = next(todo, None) if may_start else None
                if index is not None:
                    theta = plan.theta(index)
                    seed = plan.simulator_seed(index)
                    call = (plan.simulator, theta.numpy(), seed, plan.vectorised, passes_seed)
                    try:
                        flying[executor.submit(_simulate_chunk, *call)] = (index, theta)
                    except BrokenExecutor as error:
                        failures[index] = error
                        patience = 0
                elif not flying:
                    break
                # With more to start, only look whether something has finished; else wait for it.
                timeout = None if index is None else 0
                for future in wait(flying, timeout, FIRST_COMPLETED).done:
                    index, theta = flying.pop(future)
                    error = future.exception()
                    if error is not None:
                        failures[index] = error
                        continue
                    x = torch.from_numpy(future.result())
                    if store is not None:
                        meta = {"index": index, "seed": plan.seed}
                        io.write(_chunk_path(store, index), "chunk", {"theta": theta, "x": x}, meta)
                    finished[index] = (theta, x)
                    bar.update(len(theta))
                if len(failures) >= patience:
                    # What has not started never will; what is running is waited for if it can be kept.
                    running = {future: item for future, item in flying.items() if not future.cancel()}
                    flying = {} if store is None else running
    finally:
        for future in flying:
            future.cancel()
    if failures:
        _raise_failure(plan, store, len(finished), failures)


def _raise_failure(plan: _Plan, store: Path | None, kept: int, failures: dict[int, BaseException]) -> NoReturn:
    index = min(failures)
    error = failures[index]
    rows = plan.rows(index)
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    where = (
        "nothing is kept: give a folder to keep finished chunks"
        if store is None
        else f"{kept} finished chunks are kept in {store}, and a rerun does only the rest"
    )
    text = str(error) or "no message"
    message = (
        f"the simulator failed in chunk {index} of {plan.chunks}{others}, rows {rows.start} to "
        f"{rows.stop - 1}: {type(error).__name__}: {text} ({where})."
    )
    raise (InputError if isinstance(error, InputError) else SimulatorError)(message) from error


def _simulate_chunk(
    simulator: Callable[..., Any], theta: np.ndarray, seed: int, vectorised: bool, passes_seed: bool
) -> np.ndarray:
    """Runs one chunk in the worker. Arrays, not tensors, travel: tensors would hold a file handle each.

    They travel in single precision, but for data that it would round away: `Simulations.create` tells of these.
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
        with _global_state, priors.seeded(seed):  # one thread at a time
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


class _Here(Executor):
    """Runs each call at once in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # as every executor: whatever the simulator raises belongs to the future
            future.set_exception(error)
        return future


def _chunk_path(store: Path, index: int) -> Path:
    return store / f"chunk-{index:06d}.safetensors"


def _resume(store: Path, plan: _Plan) -> dict[int, tuple[Tensor, Tensor]]:
    """Claims a new folder for this run, or checks that it is this run's and reads its finished chunks."""
    settings = plan.settings()
    probe = priors.sample(plan.prior, _PRIOR_PROBE, seed=0).to("cpu", torch.float32)
    path = store / "run.safetensors"
    if not path.exists():
        if any(store.glob("chunk-*.safetensors")):
            raise InputError(f"{store} holds chunks but not {path.name}: use a new folder.")
        io.write(path, "run", {"prior_draws": probe}, settings)
        return {}
    run = io.read(path, "run")
    for name, value in settings.items():
        if run.meta.get(name) != value:
            raise InputError(
                f"{store} belongs to another run: {name} was {run.meta.get(name)!r} there and is {value!r} "
                "now. Use a new folder, or the old settings."
            )
    draws = run.tensors["prior_draws"]
    rounding = 1e-4 * probe.std(dim=0) + 1e-6 * probe.abs()  # another machine may round otherwise
    if draws.shape != probe.shape or bool(((draws - probe).abs() > rounding).any()):
        raise InputError(f"{store} belongs to another run: its prior is not this one. Use a new folder.")
    finished = {}
    for index in range(plan.chunks):
        chunk_path = _chunk_path(store, index)
        if chunk_path.exists():
            finished[index] = _read_chunk(chunk_path, index, plan)
    return finished


def _read_chunk(path: Path, index: int, plan: _Plan) -> tuple[Tensor, Tensor]:
    file = io.read(path, "chunk")
    theta, x = file.tensors["theta"], file.tensors["x"]
    expected = {"index": index, "seed": plan.seed}
    if file.meta != expected or len(theta) != len(plan.rows(index)) or len(x) != len(theta):
        raise InputError(f"{path} is not chunk {index} of this run ({file.meta}): delete it to run that chunk again.")
    return theta, x
