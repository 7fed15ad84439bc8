"""The comparison with sbi's prior_guide: what it measures, and that a job goes through."""

from __future__ import annotations

import pytest
import torch

from reprior import priors
from reprior.errors import InputError
from reprior_bench import tasks
from reprior_bench.job import execute
from reprior_bench.sbi_comparison import METHODS, NETWORK, SbiJob, jobs, judge, npse, summary

pytest.importorskip("sbi")


def test_errors_are_in_posterior_sds():
    generator = torch.Generator().manual_seed(0)
    exact = torch.tensor([1.0, 5.0]) * torch.randn(5_000, 2, generator=generator)
    other = torch.tensor([1.0, 5.0]) * torch.randn(5_000, 2, generator=generator)
    found = judge(other, exact)
    # Standard errors: sqrt(2/n) = .02 for a difference of means, .014 for a ratio of sds.
    assert found["mean_error"] < 0.06
    assert found["sd_error"] < 0.045
    assert abs(found["c2st_fast"] - 0.5) < 0.03
    found = judge(torch.tensor([0.5, 2.5]) + 2 * other, exact)
    assert found["mean_error"] == pytest.approx(0.5, abs=0.1)
    assert found["sd_error"] == pytest.approx(1.0, abs=0.06)
    assert found["c2st_fast"] > 0.6
    assert judge(exact.fill_(torch.nan), other)["c2st_fast"] == 1.0


def test_a_job_and_its_file(tmp_path):
    """Tiny, and untrained in effect: the figures mean nothing, the rows and files do."""
    job = SbiJob("two_moons", "id", simulations=300, epochs=2, observations=2, samples=200, steps=8, fit_steps=20)
    record = execute(job, tmp_path, tmp_path, "abc")
    rows = record["rows"]
    assert [row["method"] for row in rows] == [NETWORK, "no change"] * 2 + [m for m in METHODS[1:] for _ in range(2)]
    assert all(row["c2st_fast"] >= 0.3 for row in rows)
    assert [row["method"] for row in summary([record])] == [NETWORK, *METHODS]
    # A second job takes the network from the file.
    task, path = tasks.get("two_moons"), tmp_path / "npse-two_moons-id.safetensors"
    kept = npse(task, job, path)
    x = task.simulate(priors.sample(task.training_prior("id"), 1, seed=3), seed=4)[0]
    torch.testing.assert_close(kept.sample((5,), x=x, seed=0), npse(task, job, path).sample((5,), x=x, seed=0))


def test_averages_and_settings():
    errors = {"sd_error": 0.0, "c2st_fast": 0.5, "adapt_seconds": 1.0, "sample_seconds": 2.0}
    rows = [{"observation": k, "method": m, "mean_error": k + 1.0, **errors} for m in METHODS for k in range(2)]
    first = summary([{"job": {"task": "t", "regime": "id"}, "rows": rows}])[0]
    assert first == {"task": "t", "q": "id", "method": "no change", "mean": 1.5, "sd": 0.0, "c2st": 0.5, "s": 3.0}
    with pytest.raises(InputError, match="at least 2 steps"):
        SbiJob("two_moons", "id", steps=1)
    assert {(job.task, job.regime) for job in jobs()} == {
        (task, regime) for task in ("gaussian_linear", "two_moons") for regime in ("id", "ood")
    }
