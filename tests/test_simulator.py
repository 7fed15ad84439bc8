"""Running simulators: the same result everywhere, nothing run twice, failures that say where."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributions as td

from reprior import io
from reprior.errors import InputError
from reprior.simulations import Simulations
from reprior.simulator import SimulatorError, simulate

PRIOR = td.Independent(td.Normal(torch.zeros(2), torch.tensor([1.0, 3.0])), 1)


def seeded(theta: Tensor, seed: int) -> Tensor:
    """x = theta + noise, with a generator of its own."""
    return theta + torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed))


def unseeded(theta: Tensor) -> np.ndarray:
    """x = theta + noise from the three global states, slow enough for threads to get in each other's way."""
    first = torch.zeros(len(theta))
    for _ in range(10):
        first += torch.randn(len(theta))
        time.sleep(0.0002)
    second = np.random.standard_normal(len(theta))  # noqa: NPY002
    time.sleep(0.001)
    third = [random.gauss(0, 1) for _ in range(len(theta))]
    return np.stack([(theta[:, 0] + first).numpy(), second, third], axis=1)


def one_at_a_time(theta: Tensor, seed: int) -> list[float]:
    assert theta.shape == (2,)
    noise = np.random.default_rng(seed).standard_normal(3)
    return [float(theta[0] + noise[0]), float(theta[1] + noise[1]), float(noise[2])]


class Recorder:
    """A simulator that leaves one file per call and can fail for some calls."""

    __qualname__ = "Recorder"

    def __init__(self, folder: Path, pause: float = 0.0):
        self.folder = folder
        self.pause = pause
        folder.mkdir(exist_ok=True)

    def __call__(self, theta: Tensor, seed: int) -> Tensor:
        (self.folder / f"{seed}-{os.getpid()}-{time.monotonic_ns()}").touch()
        time.sleep(self.pause)
        return seeded(theta, seed)

    def calls(self) -> list[int]:
        """The seeds of all calls."""
        return sorted(int(path.name.split("-")[0]) for path in self.folder.iterdir())


def same(a: Simulations, b: Simulations) -> bool:
    return torch.equal(a.theta, b.theta) and torch.equal(a.x, b.x)


def kept(folder: Path) -> dict[int, Path]:
    """The chunk files of a folder, by the number of the chunk (of 25 rows)."""
    return {io.header_of(path)["meta"]["key"]["rows"][0] // 25: path for path in folder.glob("chunk-*")}


def run(simulator, executor: Executor | None = None, **settings) -> Simulations:
    return simulate(simulator, PRIOR, **{"n": 230, "chunk": 25, "progress": False, "executor": executor} | settings)


def test_pairs_follow_prior_and_simulator():
    sims = run(seeded, n=20_000, chunk=1000)
    assert sims.theta.shape == sims.x.shape == (20_000, 2)
    assert sims.prior is PRIOR
    # Standard error of a standard deviation: sd / sqrt(2 n) = .5 % of sd; of a mean: .7 % of sd.
    for values, sd in ((sims.theta, [1.0, 3.0]), (sims.x, [math.sqrt(2), math.sqrt(10)])):
        for column, expected in enumerate(sd):
            assert abs(values[:, column].mean()) < 0.03 * expected
            assert values[:, column].std().item() == pytest.approx(expected, rel=0.02)
    # Noise is independent of theta and between chunks: correlations have standard error .007 and .03.
    noise = sims.x - sims.theta
    assert np.abs(np.corrcoef(noise.T.numpy(), sims.theta.T.numpy())[:2, 2:]).max() < 0.03
    chunks = noise[:, 0].reshape(20, 1000).numpy()
    assert np.abs(np.corrcoef(chunks) - np.eye(20)).max() < 0.15


def test_seed_decides_theta_and_noise():
    sims = run(seeded, seed=3)
    assert same(sims, run(seeded, seed=3))
    assert not torch.equal(sims.theta, run(seeded, seed=4).theta)


@pytest.mark.parametrize(("simulator", "vectorised"), [(seeded, True), (unseeded, True), (one_at_a_time, False)])
def test_threads_give_the_same_bits(simulator, vectorised: bool):
    here = run(simulator, vectorised=vectorised)
    with ThreadPoolExecutor(4) as executor:
        assert same(here, run(simulator, executor, vectorised=vectorised))


class SlowPrior:
    """PRIOR, with a rest between its two columns in which a thread could use the global state."""

    event_shape = torch.Size((2,))

    def sample(self, shape=()) -> Tensor:
        first = torch.randn(*shape)
        time.sleep(0.003)
        return torch.stack([first, 3 * torch.randn(*shape)], dim=-1)

    def log_prob(self, theta: Tensor) -> Tensor:
        return PRIOR.log_prob(theta)


def test_prior_and_simulator_do_not_share_a_random_state_across_threads():
    settings = {"prior": SlowPrior(), "n": 200, "chunk": 25, "progress": False}
    here = simulate(unseeded, **settings)
    with ThreadPoolExecutor(2) as executor:
        assert same(here, simulate(unseeded, executor=executor, **settings))


def test_processes_give_the_same_bits():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as executor:
        for simulator, vectorised in ((seeded, True), (unseeded, True), (one_at_a_time, False)):
            assert same(run(simulator, vectorised=vectorised), run(simulator, executor, vectorised=vectorised))


def test_dask_gives_the_same_bits():
    distributed = pytest.importorskip("distributed")
    settings = {"processes": False, "n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        assert same(run(seeded), run(seeded, client.get_executor()))


def test_the_global_random_states_are_left_alone():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    expected = torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    run(unseeded)
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected  # noqa: NPY002


def test_one_theta_at_a_time_does_not_repeat_its_noise():
    sims = run(one_at_a_time, vectorised=False)
    noise = sims.x[:, 2]
    assert len(noise.unique()) == len(noise) == 230


@pytest.mark.parametrize(
    ("simulator", "width"),
    [
        (lambda theta: theta[:, 0], 1),
        (lambda theta: theta.double().numpy(), 2),
        (lambda theta: theta.tolist(), 2),
        (lambda theta: [row for row in theta], 2),  # noqa: C416
        (lambda theta: theta[:, :, None].expand(-1, -1, 3), 6),
    ],
)
def test_outputs_of_every_usual_kind_become_rows(simulator, width: int):
    sims = run(simulator)
    assert sims.x.shape == (230, width)
    assert sims.x.dtype == torch.float32
    assert torch.equal(sims.x[:, 0], sims.theta[:, 0])


def test_bad_rows_are_dropped_and_too_many_refused(tmp_path):
    def fails_sometimes(theta: Tensor) -> Tensor:
        return torch.where(theta[:, :1] > 1.5, math.nan, theta)  # P(z > 1.5) = .067

    with pytest.warns(UserWarning, match="dropped"):
        sims = run(fails_sometimes, folder=tmp_path)
    assert len(sims) + sims.dropped == 230
    assert 0 < sims.dropped < 23
    with pytest.raises(InputError, match="max_bad_fraction allows 1"):
        run(fails_sometimes, folder=tmp_path, max_bad_fraction=0.01)
    assert len(list(tmp_path.glob("chunk-*"))) == 10  # nothing is lost by the refusal


def test_finished_chunks_are_not_run_again(tmp_path):
    recorder = Recorder(tmp_path / "calls")
    first = run(recorder, folder=tmp_path / "run")
    assert len(recorder.calls()) == 10
    assert same(first, run(recorder, folder=tmp_path / "run"))
    assert len(recorder.calls()) == 10
    kept(tmp_path / "run")[4].unlink()
    assert same(first, run(recorder, folder=tmp_path / "run"))
    assert len(recorder.calls()) == 11
    assert same(first, run(recorder))  # and a folder changes nothing


KILLED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_simulator import Recorder, run
with ThreadPoolExecutor(2) as executor:
    run(Recorder(Path({calls!r}), pause=0.2), executor, folder={folder!r})
"""


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    folder, calls = tmp_path / "run", tmp_path / "calls"
    code = KILLED.format(tests=str(Path(__file__).parent), calls=str(calls), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 120
    while len(list(folder.glob("chunk-*"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = set(kept(folder))
    assert 3 <= len(done) < 10

    recorder = Recorder(calls)
    before = recorder.calls()
    resumed = run(recorder, folder=folder)
    fresh = Recorder(tmp_path / "fresh")
    uninterrupted = run(fresh)
    assert same(resumed, uninterrupted)
    # Seeds in the order of chunks: the rerun called exactly the chunks that were not on disk.
    seeds = [min(fresh.calls()) + 25 * index for index in range(10)]
    assert fresh.calls() == seeds
    rerun = recorder.calls()
    for seed in before:
        rerun.remove(seed)
    assert rerun == [seed for index, seed in enumerate(seeds) if index not in done]


@pytest.mark.parametrize("change", [{"seed": 1}, {"chunk": 50}, {"vectorised": False}])
def test_a_run_of_other_settings_finds_nothing_and_says_so(tmp_path, change):
    def simulator(theta: Tensor) -> Tensor:  # takes one theta, or many
        return 2 * theta

    first = run(simulator, folder=tmp_path)
    with pytest.warns(UserWarning, match=f"results .chunk. of other settings only.* {next(iter(change))}"):
        other = run(simulator, folder=tmp_path, **change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(other, run(simulator, **change))
        assert same(first, run(simulator, folder=tmp_path))


def test_a_run_of_another_prior_or_simulator_finds_nothing_and_says_so(tmp_path):
    run(seeded, folder=tmp_path)
    other = td.Independent(td.Normal(torch.zeros(2), torch.tensor([1.0, 3.01])), 1)
    settings = {"chunk": 25, "folder": tmp_path, "progress": False}
    with pytest.warns(UserWarning, match="differ in: prior$"):
        assert simulate(seeded, other, 230, **settings).theta[:, 1].std() > 0
    with pytest.warns(UserWarning, match="differ in: simulator$"):
        run(unseeded, folder=tmp_path)


def test_more_simulations_run_only_the_new_ones(tmp_path):
    recorder = Recorder(tmp_path / "calls")
    fewer = run(recorder, n=100, folder=tmp_path / "run")
    assert len(recorder.calls()) == 4
    more = run(recorder, n=230, folder=tmp_path / "run")
    assert len(recorder.calls()) == 10
    assert same(more, run(recorder, n=230))
    assert torch.equal(more.x[:100], fewer.x)


def test_a_damaged_chunk_is_run_again(tmp_path):
    recorder = Recorder(tmp_path / "calls")
    first = run(recorder, folder=tmp_path / "run")
    path = kept(tmp_path / "run")[3]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged file was removed"):
        assert same(first, run(recorder, folder=tmp_path / "run"))
    assert len(recorder.calls()) == 11


class OwnPrior(SlowPrior):
    """No plain numbers can hold it: its key is made of draws."""

    def __init__(self, scale: float):
        self.scale = scale

    def log_prob(self, theta: Tensor) -> Tensor:
        return PRIOR.log_prob(theta) / self.scale


def test_priors_of_a_users_own_class_are_told_apart(tmp_path):
    recorder = Recorder(tmp_path / "calls")
    settings = {"n": 50, "chunk": 25, "progress": False, "folder": tmp_path / "run"}
    simulate(recorder, OwnPrior(1.0), **settings)
    simulate(recorder, OwnPrior(1.0), **settings)
    assert len(recorder.calls()) == 2
    with pytest.warns(UserWarning, match="differ in: prior$"):
        simulate(recorder, OwnPrior(1.01), **settings)
    assert len(recorder.calls()) == 4


@pytest.mark.parametrize("threads", [False, True])
def test_a_failing_chunk_is_named_and_the_finished_ones_are_kept(tmp_path, threads: bool):
    bad = set(run(seeded).theta[75:100, 0].tolist())  # the fourth chunk
    broken = [True]

    def fragile(theta: Tensor, seed: int) -> Tensor:
        if broken[0] and theta[0, 0].item() in bad:
            raise ZeroDivisionError("no such universe")
        return seeded(theta, seed)

    with ThreadPoolExecutor(1) as pool:
        executor = pool if threads else None
        message = r"chunk 3 of 10, rows 75 to 99: ZeroDivisionError: no such universe \(finished chunks are kept in "
        with pytest.raises(SimulatorError, match=message) as caught:
            run(fragile, executor, folder=tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert set(kept(tmp_path)) >= {0, 1, 2}
        assert 3 not in kept(tmp_path)
        broken[0] = False
        assert same(run(fragile, executor, folder=tmp_path), run(seeded))


def test_what_runs_beside_a_failure_is_kept(tmp_path):
    slow_one, failed = int(run(seeded).theta[0, 0] * 1e6), threading.Event()

    def simulator(theta: Tensor, seed: int) -> Tensor:
        if int(theta[0, 0] * 1e6) == slow_one:  # the first chunk ends after another one has failed
            assert failed.wait(60)
            time.sleep(0.2)
            return seeded(theta, seed)
        failed.set()
        raise ZeroDivisionError

    with ThreadPoolExecutor(2) as executor, pytest.raises(SimulatorError, match="chunk 1 of 10"):
        run(simulator, executor, folder=tmp_path)
    assert set(kept(tmp_path)) == {0}


def test_a_simulator_that_always_fails_stops_early(tmp_path):
    recorder = Recorder(tmp_path / "calls", pause=0.02)

    def hopeless(theta: Tensor, seed: int) -> Tensor:
        recorder(theta, seed)
        raise ValueError("never")

    with pytest.raises(SimulatorError, match=r"chunk 0 of 10.*nothing is kept: give a folder"):
        run(hopeless)
    assert len(recorder.calls()) == 1
    # In a pool, what waits in the queue is taken back.
    with ThreadPoolExecutor(2) as executor, pytest.raises(SimulatorError, match="never"):
        run(hopeless, executor, folder=tmp_path / "run", n=2000)
    assert len(recorder.calls()) - 1 <= 6  # of 80 chunks


def die(theta: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return theta


def test_a_worker_that_dies_is_an_error_and_no_hang(tmp_path):
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context) as executor,
        pytest.raises(SimulatorError, match="BrokenProcessPool"),
    ):
        run(die, executor, folder=tmp_path)


@pytest.mark.parametrize(
    ("simulator", "vectorised", "message"),
    [
        (lambda theta: theta[:-1], True, r"returned shape \(24, 2\) for 25 parameters"),
        (lambda theta: 1.0, True, r"returned shape \(\)"),
        (lambda theta: None, True, "returned None"),
        (lambda theta: theta[:, 0].to(torch.complex64), True, "complex"),
        (lambda theta: ["a"] * len(theta), True, "not numbers"),
        (lambda theta: [0.0] * (1 + int(theta[0] > 0)), False, r"different lengths: \[1, 2\]"),
        (lambda theta: theta[:, : 1 + int(theta[0, 0] > 0)], True, r"different chunks: \[1, 2\]"),
    ],
)
def test_unusable_output_is_refused(simulator, vectorised: bool, message: str):
    with pytest.raises(InputError, match=message):
        run(simulator, vectorised=vectorised)


def test_bad_settings_are_refused():
    for name, value in (("n", 0), ("chunk", 0), ("n", 2.5), ("chunk", "25")):
        with pytest.raises(InputError, match=f"{name} is {value!r}"):
            run(seeded, None, **{name: value})
    for seed in (-1, 0.5):
        with pytest.raises(InputError, match="seed must be an integer of 0 or more"):
            run(seeded, None, seed=seed)


def test_progress_is_shown_on_request(capsys, tmp_path):
    run(seeded, progress=True, folder=tmp_path)
    assert "230/230" in capsys.readouterr().err
    run(seeded, progress=False, folder=tmp_path)
    assert capsys.readouterr().err == ""


def test_chunk_files_are_ordinary_reprior_files(tmp_path):
    sims = run(seeded, folder=tmp_path)
    file = io.read(kept(tmp_path)[9], "chunk")
    assert torch.equal(file.tensors["theta"], sims.theta[225:])
    assert torch.equal(file.tensors["x"], sims.x[225:])


@pytest.mark.parametrize(
    "settings",
    [{"parameters": ["a", "b", "c"]}, {"missing": "kept"}, {"max_bad_fraction": 1.5}],
    ids=lambda s: next(iter(s)),
)
def test_settings_are_checked_before_anything_is_simulated(settings):
    calls = []

    def simulator(theta):
        calls.append(len(theta))
        return theta

    with pytest.raises(InputError, match=next(iter(settings))):
        simulate(simulator, PRIOR, 20, progress=False, **settings)
    assert calls == []


def test_integers_of_numpy_are_integers():
    assert len(simulate(lambda theta: theta, PRIOR, np.int64(10), progress=False)) == 10


def days(theta):
    """Double precision, and a spread that single precision has no steps for."""
    return 2_459_000.5 + 1e-3 * theta.double()


def test_data_that_single_precision_would_round_away_are_told():
    with pytest.warns(UserWarning, match="column 0 of x lies about 2459000.5 and varies by 0.00"):
        simulations = simulate(days, PRIOR, 200, seed=0, progress=False)
    assert simulations.x.dtype == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert simulate(lambda theta: theta.double(), PRIOR, 20, seed=0, progress=False).x.dtype == torch.float32
