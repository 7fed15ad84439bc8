"""OUP: the simulator's moments, exact likelihoods of subsets, the reference by ranks and quadrature, and prediction."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Uniform

from reprior import priors
from reprior_bench import tasks
from reprior_bench.tasks.oup import _log_likelihood

TASK = tasks.get("oup")
FIRST_8 = torch.arange(25) < 8


def moments(theta):
    """Mean (25,) and covariance (25, 25) of the series, by the recursion."""
    a, b = 1 - 0.2 * theta[0], 0.2 * theta[0] * math.exp(theta[1])
    mean, m = [], 10.0
    for _ in range(25):
        m = a * m + b
        mean.append(m)
    # y = mean + L e, with L_kj = a^(k-j) for j <= k and noise variance 0.05.
    lower = torch.tensor([[a ** (k - j) if j <= k else 0.0 for j in range(25)] for k in range(25)]).double()
    return torch.tensor(mean).double(), 0.05 * lower @ lower.T


@pytest.mark.parametrize("theta", [(1.8, 0.0), (-0.5, 1.0), (0.0, 2.0)])
def test_simulator_moments(theta):
    n = 100_000
    x = TASK.simulate(torch.tensor([theta]).expand(n, 2), seed=0).double()
    mean, covariance = moments(theta)
    sd = covariance.diagonal().sqrt()
    assert ((x.mean(0) - mean).abs() < 5 * sd / n**0.5 + 1e-5 * mean.abs()).all()
    assert ((torch.cov(x.T) - covariance).abs() < 5 * 2**0.5 * sd[:, None] * sd / n**0.5).all()


@pytest.mark.parametrize("observed", [torch.ones(25, dtype=torch.bool), FIRST_8, torch.arange(25) % 3 == 1])
def test_likelihood_of_any_subset(observed):
    # The joint distribution of the series is one Gaussian: take its marginal.
    theta_star, x = TASK.observations("ood", 4, seed=1)
    for theta in theta_star.double():
        mean, covariance = moments(theta.tolist())
        part = MultivariateNormal(mean[observed], covariance[observed][:, observed])
        expected = float(part.log_prob(x[0].double()[observed]))
        value = _log_likelihood(theta[None], x[0].double(), observed)
        assert float(value) == pytest.approx(expected, rel=1e-6, abs=1e-4)
    if observed.all():
        value = TASK.log_likelihood(theta_star, x[0])
        assert torch.allclose(value, _log_likelihood(theta_star.double(), x[0].double(), observed).float())


@pytest.mark.parametrize("regime", ["id", "ood"])
def test_reference_is_calibrated(calibration, regime):
    def statistics(theta):
        level = theta[:, 0] * theta[:, 1].exp()
        return torch.stack([theta[:, 0], theta[:, 1], level, (theta[:, 0] - 1.8) * theta[:, 1]], dim=-1)

    assert min(calibration(TASK, regime, 200, statistics)) > 0.001


@pytest.mark.parametrize("kind", ["training", "uniform"])
def test_reference_matches_importance_sampling(kind):
    _, x = TASK.observations("ood", 3, seed=0)
    box = Independent(Uniform(torch.tensor([0.5, -1.0]), torch.tensor([2.0, 0.2])), 1)
    prior = TASK.training_prior("ood") if kind == "training" else box
    n = 20_000
    drawn = TASK.reference(x[1], n, "ood", prior, seed=0).double()
    pool = priors.sample(prior, 1_000_000, seed=1)
    weights = torch.softmax(TASK.log_likelihood(pool, x[1]).double(), 0)
    size = float(1 / (weights**2).sum())
    assert size > 2000
    mean = weights @ pool.double()
    sd = (weights @ (pool.double() - mean) ** 2).sqrt()
    # Both sides carry sampling error: n draws here, an effective sample of `size` there.
    assert ((drawn.mean(0) - mean).abs() < 5 * sd * (1 / n + 1 / size) ** 0.5).all()
    assert ((drawn.std(0) / sd - 1).abs() < 5 * (1 / n + 1 / size) ** 0.5).all()
    assert torch.isfinite(priors.log_prob(prior, drawn.float())).all()


def test_series_that_explode_are_kept_as_they_are():
    # theta_1 = -2 multiplies the distance from the level by 1.4 a step; no noise is visible at that size.
    theta = torch.tensor([[-2.0, 0.0]])
    x = TASK.simulate(theta, seed=0)
    assert float(x[0, -1]) == pytest.approx(1 + 9 * 1.4**25, rel=0.05)
    # The reference copes: the rate is then known almost exactly.
    box = Independent(Uniform(torch.tensor([-3.0, -1.0]), torch.tensor([3.0, 1.0])), 1)
    drawn = TASK.reference(x[0], 500, "id", box)
    assert ((drawn[:, 0] + 2).abs() < 0.01).all()
    # Draws of the four priors stay far from the limits of float32.
    for regime in TASK.regimes:
        for prior in (TASK.training_prior(regime), TASK.target_prior(regime)):
            series = TASK.simulate(priors.sample(prior, 100_000, seed=0), seed=1)
            assert torch.isfinite(series).all()
            assert float(series.abs().max()) < 1e5


def test_prediction_keeps_what_is_observed_and_ignores_the_rest():
    _, x = TASK.observations("id", 1, seed=0)
    hidden = torch.where(FIRST_8, x[0], torch.nan)
    drawn = TASK.predict_reference(hidden, FIRST_8, 50, "id", seed=3)
    assert drawn.shape == (50, 25)
    assert torch.equal(drawn[:, :8], x[:, :8].expand(50, 8))
    assert torch.equal(drawn, TASK.predict_reference(x[0], FIRST_8, 50, "id", seed=3))
    assert torch.isfinite(drawn).all()


@pytest.mark.parametrize("observed", [FIRST_8, torch.arange(25) % 6 == 2], ids=["first", "gaps"])
def test_prediction_is_calibrated(observed):
    # Ranks of the true unobserved points among 99 predictive draws: uniform for every point.
    from scipy.stats import kstest

    _, x = TASK.observations("ood", 120, seed=4)
    points = [8, 12, 24] if observed[0] else [3, 10, 23]
    points = [k for k in points if not observed[k]]
    assert points
    ranks = []
    for i in range(len(x)):
        drawn = TASK.predict_reference(x[i], observed, 99, "ood", seed=i)
        ranks.append((drawn[:, points] < x[i, points]).double().mean(0))
    for column in torch.stack(ranks).T:
        # Ranks on a grid of 100 values: their steps, 0.01, are small against the scale 1/sqrt(120) of the test.
        assert kstest(column.numpy(), "uniform").pvalue > 0.001


def test_points_between_are_drawn_from_the_bridge():
    # Given theta, the points in a gap are Gaussian conditionals of the joint; a nearly fixed theta by a narrow prior.
    theta = torch.tensor([1.2, 0.5])
    prior = MultivariateNormal(theta, 1e-10 * torch.eye(2))
    observed = torch.arange(25).fmod(5) == 4
    x = TASK.simulate(theta[None], seed=0)[0]
    n = 40_000
    drawn = TASK.predict_reference(x, observed, n, "id", prior, seed=0).double()[:, ~observed]
    mean, covariance = moments(theta.tolist())
    gain = covariance[~observed][:, observed] @ torch.linalg.inv(covariance[observed][:, observed])
    expected = mean[~observed] + gain @ (x.double() - mean)[observed]
    variance = covariance[~observed][:, ~observed] - gain @ covariance[observed][:, ~observed]
    sd = variance.diagonal().sqrt()
    assert ((drawn.mean(0) - expected).abs() < 5 * sd / n**0.5 + 1e-4).all()
    assert ((torch.cov(drawn.T) - variance).abs() < 5 * 2**0.5 * sd[:, None] * sd / n**0.5).all()
