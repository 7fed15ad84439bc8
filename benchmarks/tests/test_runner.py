"""The runner: an error costs its own job, a second run does what is left, a killed run loses and doubles nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
import safetensors.torch
import torch
from fake_jobs import FakeJob, starts_of

from reprior.errors import InputError
from reprior_bench import runner
from reprior_bench.runner import cluster, local, run
from reprior_bench.store import Table


@contextmanager
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def records(folder) -> dict[str, dict]:
    return Table(folder, "fake").records()


def go(jobs, folder, pool=threads) -> tuple[dict[str, str], list[str]]:
    """Errors, and the lines of progress."""
    lines: list[str] = []
    return run(jobs, folder, folder / "bases", pool, lines.append), lines


def test_an_error_in_one_job_costs_no_other_and_is_told(tmp_path):
    errors, lines = go([FakeJob(0), FakeJob(1, "fail"), FakeJob(2)], tmp_path)
    assert set(records(tmp_path)) == {"0", "2"}
    assert list(errors) == ["fake 1"]
    assert "job 1 divides by zero" in errors["fake 1"]
    assert "fake 1 FAILED: ZeroDivisionError: job 1 divides by zero" in lines


def test_a_refusal_is_a_result(tmp_path):
    errors, _ = go([FakeJob(0, "refuse")], tmp_path)
    assert errors == {}
    assert records(tmp_path)["0"]["refused"] == "job 0 cannot be done"
    assert go([FakeJob(0)], tmp_path)[1] == ["1 jobs, 1 done before"]


def test_a_second_run_does_only_what_is_left(tmp_path):
    go([FakeJob(0), FakeJob(1, "fail"), FakeJob(2)], tmp_path)
    before = Table(tmp_path, "fake").path.read_text()
    errors, lines = go([FakeJob(0), FakeJob(1), FakeJob(2)], tmp_path)
    assert errors == {}
    assert lines[0] == "3 jobs, 2 done before"
    assert Table(tmp_path, "fake").path.read_text().startswith(before)
    assert sorted(records(tmp_path)) == ["0", "1", "2"]


def test_a_base_that_fails_costs_its_own_jobs_only(tmp_path, monkeypatch):
    made = []

    def make(spec, folder):
        made.append(spec.task)
        if spec.task == "slcp":
            raise RuntimeError("no memory")

    monkeypatch.setattr(runner, "_train", make)
    jobs = [FakeJob(i, task=task) for i, task in enumerate(("slcp", "slcp", "oup", "oup", ""))]
    errors, _ = go(jobs, tmp_path)
    assert sorted(made) == ["oup", "slcp"]  # each once, whatever the number of jobs
    assert sorted(errors) == ["fake 0", "fake 1"]
    assert "its base was not trained" in errors["fake 0"]
    assert set(records(tmp_path)) == {"2", "3", "4"}


def test_a_job_is_done_again_where_its_base_is_another_one(tmp_path):
    job = FakeJob(0, task="oup")
    path = job.base.path(tmp_path / "bases")  # pyright: ignore[reportOptionalMemberAccess]
    path.parent.mkdir()
    for value, done in ((0.0, 0), (0.0, 1), (1.0, 0), (1.0, 1)):
        safetensors.torch.save_file({"weight": torch.full((3,), value)}, path)
        assert go([job], tmp_path)[1][0] == f"1 jobs, {done} done before"
    path.unlink()
    assert go([job], tmp_path)[1][0] == "1 jobs, 1 done before"  # there is nothing to compare with
    assert len(records(tmp_path)) == 1


def test_a_job_that_kills_its_process_costs_no_other(tmp_path):
    jobs = [FakeJob(0, "kill"), *(FakeJob(i) for i in range(1, 6))]
    errors, _ = go(jobs, tmp_path, partial(local, 2))
    assert list(errors) == ["fake 0"]
    assert "its process died" in errors["fake 0"]
    assert set(records(tmp_path)) == {str(i) for i in range(1, 6)}
    assert os.getpid() not in {r["pid"] for r in records(tmp_path).values()}
    assert starts_of(tmp_path, jobs[0])[0] not in {r["pid"] for r in records(tmp_path).values()}


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
sys.path.insert(0, {tests!r})
from fake_jobs import FakeJob
from reprior_bench.runner import local, run
if __name__ == "__main__":
    run([FakeJob(i, seconds=0.0 if i < 2 else 60.0) for i in range(4)], {folder!r}, {folder!r}, partial(local, 1))
"""


def test_a_killed_run_leaves_no_worker_behind_and_goes_on(tmp_path):
    jobs = [FakeJob(i) for i in range(4)]
    script = tmp_path / "go.py"
    script.write_text(SCRIPT.format(tests=os.path.dirname(__file__), folder=str(tmp_path)))
    child = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not starts_of(tmp_path, jobs[2]) and time.monotonic() < deadline:
        time.sleep(0.05)
    (worker,) = starts_of(tmp_path, jobs[2])
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert set(records(tmp_path)) == {"0", "1"}
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(worker)
    assert go(jobs, tmp_path)[1][0] == "4 jobs, 2 done before"
    assert len(Table(tmp_path, "fake").path.read_text().splitlines()) == 4


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_dask_cluster_runs_jobs(tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, silence_logs=50
    ) as made:
        errors, _ = go([FakeJob(0), FakeJob(1, "fail")], tmp_path, partial(cluster, made.scheduler_address))
    assert list(errors) == ["fake 1"]
    assert set(records(tmp_path)) == {"0"}


def test_no_scheduler_is_said_in_one_line(monkeypatch):
    distributed = pytest.importorskip("distributed")

    def refuse(*_, **__):
        raise OSError("Timed out")

    monkeypatch.setattr(distributed, "Client", refuse)
    with (
        pytest.raises(InputError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:1'"),
        cluster("tcp://127.0.0.1:1"),
    ):
        pass
    with pytest.raises(InputError, match="workers must be at least 1; got 0"), local(0):
        pass


def test_a_folder_that_cannot_be_is_said_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be a folder for the results"):
        run([FakeJob(0)], tmp_path / "file", tmp_path, threads)
