"""Gaussian Linear: closed-form posteriors against quadrature of their definition, and the rejection route."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)

from reprior import priors
from reprior_bench import tasks
from reprior_bench.tasks.gaussian_linear import gaussian_components

TASK = tasks.get("gaussian_linear")


def test_simulator_moments():
    n = 200_000
    theta = torch.arange(6.0).expand(n, 6)
    noise = TASK.simulate(theta, seed=0).double() - theta
    assert (noise.mean(0).abs() < 5 * (0.1 / n) ** 0.5).all()
    # Standard error of a (co)variance: at most 0.1 sqrt(2/n).
    assert ((torch.cov(noise.T) - 0.1 * torch.eye(6)).abs() < 5 * 0.1 * (2 / n) ** 0.5).all()


def test_log_likelihood_is_that_of_torch():
    theta, x = TASK.observations("ood", 5, seed=0)
    expected = MultivariateNormal(theta, 0.1 * torch.eye(6)).log_prob(x[0])
    assert torch.allclose(TASK.log_likelihood(theta, x[0]), expected, rtol=1e-5)


@pytest.mark.parametrize("regime", ["id", "ood"])
def test_reference_is_calibrated(calibration, regime):
    def statistics(theta):
        return torch.cat([theta, theta.mean(-1, keepdim=True)], dim=-1)

    assert min(calibration(TASK, regime, 400, statistics)) > 0.001


def test_calibration_would_see_the_wrong_prior(calibration):
    # The posterior under p instead of q must fail the same test, or the test is worth nothing.
    assert min(calibration(TASK, "ood", 400, lambda theta: theta, prior="training")) < 1e-6


class Opaque(Distribution):
    """A prior that does not show what it is, so that the reference must take its general route."""

    def __init__(self, prior):
        super().__init__(event_shape=prior.event_shape, validate_args=False)
        self.prior = prior

    def sample(self, sample_shape=torch.Size()):  # noqa: B008
        return self.prior.sample(sample_shape)

    def log_prob(self, value):
        return self.prior.log_prob(value)


@pytest.mark.parametrize("regime", ["id", "ood"])
def test_rejection_and_closed_form_agree(regime):
    _, x = TASK.observations(regime, 1, seed=1)
    n = 20_000
    exact = TASK.reference(x[0], n, regime, seed=0).double()
    general = TASK.reference(x[0], n, regime, Opaque(TASK.target_prior(regime)), seed=0).double()
    # Two independent samples: the difference of means has standard error sd sqrt(2/n).
    assert ((exact.mean(0) - general.mean(0)).abs() < 5 * exact.std(0) * (2 / n) ** 0.5).all()
    assert ((exact.std(0) / general.std(0) - 1).abs() < 5 / n**0.5).all()


def test_other_priors_against_one_dimensional_quadrature():
    # Independent Laplace priors: the posterior factorises, and each factor is integrated on a line.
    _, x = TASK.observations("ood", 1, seed=2)
    prior = Independent(Laplace(torch.full((6,), -0.5), torch.full((6,), 0.3)), 1)
    drawn = TASK.reference(x[0], 20_000, "ood", prior, seed=0).double()
    line = torch.linspace(-6, 6, 20_001, dtype=torch.float64)
    for i in range(6):
        log_f = -((line - x[0, i]) ** 2) / 0.2 - (line + 0.5).abs() / 0.3
        weights = torch.softmax(log_f, 0)
        mean = float(weights @ line)
        sd = float(weights @ (line - mean) ** 2) ** 0.5
        assert float(drawn[:, i].mean()) == pytest.approx(mean, abs=5 * sd / 20_000**0.5)
        assert float(drawn[:, i].std()) == pytest.approx(sd, rel=0.04)


def test_components_of_mixtures():
    means = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    parts = Independent(Normal(means, torch.full((3, 6), 0.7)), 1)
    components = gaussian_components(MixtureSameFamily(Categorical(torch.tensor([0.2, 0.3, 0.5])), parts))
    assert components is not None
    log_w, mean, covariance = components
    assert torch.allclose(log_w.softmax(0), torch.tensor([0.2, 0.3, 0.5]).double())
    assert torch.equal(mean.float(), means)
    assert torch.allclose(covariance, 0.49 * torch.eye(6).double().expand(3, 6, 6))
    assert gaussian_components(Independent(Laplace(torch.zeros(6), torch.ones(6)), 1)) is None


def test_log_density_is_minus_infinity_outside_the_support():
    box = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(6), torch.ones(6)), 1)
    _, x = TASK.observations("id", 1, seed=3)
    drawn = TASK.reference(x[0].clamp(0, 1), 500, "id", box)
    assert torch.isfinite(priors.log_prob(box, drawn)).all()
