"""The evidence: exact denoisers against formulas, cases against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from reprior.diffusion.schedule import VP
from reprior.errors import InputError
from reprior_bench.evidence import CASES, EvidenceJob, evidence_jobs, evidence_rows
from reprior_bench.exact_scores import EmpiricalDenoiser, GaussianDenoiser
from reprior_bench.job import execute
from reprior_bench.store import Table


def test_the_gaussian_denoiser_is_the_conditional_mean():
    cov = torch.tensor([[1.0, 0.6], [0.6, 0.5]])
    mean, z, s = torch.tensor([0.3, -1.0]), torch.tensor([[2.0, 1.0]]), torch.tensor(0.7)
    expected = mean + (z - mean) @ torch.linalg.inv(cov + 0.49 * torch.eye(2)) @ cov
    assert torch.allclose(GaussianDenoiser(mean, cov).mean(z, s), expected, atol=1e-6)


def test_the_denoiser_of_points_approaches_that_of_their_law():
    points = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    z, s = torch.tensor([[[1.0, -0.5]]]), torch.tensor(1.0)
    # E[theta | z] = z/2 with variance 1/2; about 20,000 / 5 points carry weight: standard error .7 / 60.
    assert torch.allclose(EmpiricalDenoiser(points).mean(z, s), z / 2, atol=0.05)
    near = EmpiricalDenoiser(points).mean(points[7:8, None] + 1e-4, torch.tensor(1e-4))
    assert torch.allclose(near[0, 0], points[7], atol=1e-3)  # at no noise, the nearest point


def euler_maruyama_sd(width: float) -> float:
    """The standard deviation after 25 steps on N(0, width^2), by the recursion of the variance."""
    vp = VP()
    times = [(vp.t_min + i / 25 * (vp.t_max - vp.t_min)) ** 2 for i in range(26)]
    variance = 1.0
    for i in range(25, 0, -1):
        t, dt = torch.tensor(times[i], dtype=torch.float64), times[i] - times[i - 1]
        beta, alpha, sigma = float(vp.beta(t)), float(vp.alpha(t)), float(vp.sigma(t))
        score = -1 / (alpha**2 * width**2 + sigma**2)
        variance = (1 + beta * dt * (0.5 + score)) ** 2 * variance + beta * dt
    return math.sqrt(variance)


@pytest.mark.parametrize("width", ["0.02", "0.05", "0.3"])
def test_the_width_of_the_papers_sampler_follows_the_recursion(width):
    job = EvidenceJob("sampler_width", "gaussian", width, observations=1, samples=20_000)
    found = CASES["sampler_width"](job, 0)
    assert found == pytest.approx(euler_maruyama_sd(float(width)) / float(width), rel=0.02)  # 4 / sqrt(2 n)


def test_the_rmse_of_gaussian_linear_is_forced():
    # Posterior variance v per direction, and theta* is a draw of it too: E (theta - theta*)^2 = 2 v. With S = 0.2 J + 0.8 I
    # v = 1 / (1 / 0.8 + 10) in five directions and 1 / (1 / 2 + 10) in one.
    forced = math.sqrt(2 * (5 / (1 / 0.8 + 10) + 1 / (1 / 2 + 10)) / 6)
    job = EvidenceJob("exact_rmse", "gaussian_linear", "ood", observations=200, samples=100)
    squares = [CASES["exact_rmse"](job, k) ** 2 for k in range(200)]
    # A row's mean square is v + mean of 6 squares of sd sqrt(v): relative sd about sqrt(2/6)/2 = .29, over 200 rows.
    assert math.sqrt(sum(squares) / 200) == pytest.approx(forced, rel=0.04)


def test_cases_are_known_by_name():
    jobs = evidence_jobs()
    assert {job.case for job in jobs} == set(CASES)
    assert {job.case for job in evidence_jobs(2, ["ess"])} == {"ess"}
    assert {job.seed for job in evidence_jobs(seed=7)} == {7}
    assert len({job.name for job in jobs}) == len(jobs)
    with pytest.raises(InputError, match="case 'guess' is unknown"):
        evidence_jobs(cases=["guess"])


def test_of_two_records_of_a_case_the_one_with_more_observations_counts(tmp_path):
    for observations in (3, 2):
        job = EvidenceJob("sampler_width", "gaussian", "0.3", observations, samples=1_000)
        record = execute(job, tmp_path, tmp_path, "abc")
        assert len(record["values"]) == observations
        Table(tmp_path, job.part).append(record)
    (row,) = evidence_rows(tmp_path)
    assert row["observations"] == 3
    assert (row["case"], row["task"], row["regime"]) == ("sampler_width", "gaussian", "0.3")
    assert math.isnan(row["paper"])
    assert evidence_rows(tmp_path, seed=1) == []


def test_ess_of_equal_priors_would_be_one_and_of_ours_is_not():
    job = EvidenceJob("ess", "gaussian_linear", "ood", observations=2, samples=1_000)
    values = [CASES["ess"](job, k) for k in range(2)]
    assert all(0 < v < 0.9 for v in values)
