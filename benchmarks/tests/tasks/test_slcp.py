"""SLCP: the symmetry group by density, the exact reference by ranks and by importance sampling, the paper's variant."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal

from reprior import priors
from reprior.errors import InputError
from reprior_bench import tasks
from reprior_bench.tasks.rejection import rejection_sample
from reprior_bench.tasks.slcp import Slcp
from reprior_bench.tasks.slcp_proposal import IMAGES, from_likelihood, from_mixture, log_evidence

TASK = Slcp()
SKEW = Independent(Normal(torch.tensor([0.8, 0.4, 0.5, -0.3, 0.6]), torch.tensor([0.5, 1.0, 0.8, 0.5, 0.7])), 1)
"""A prior without the symmetry of the likelihood."""


def test_simulator_moments():
    n = 100_000
    theta = torch.tensor([0.7, -1.2, -0.9, 1.4, 0.8])
    points = TASK.simulate(theta.expand(n, 5), seed=0).double().reshape(-1, 2)
    cross = torch.tanh(theta[4]) * theta[2] * theta[3]
    sigma = torch.tensor([[theta[2] ** 2, cross], [cross, theta[3] ** 2]]).double()
    sd = sigma.diagonal().sqrt()
    assert ((points.mean(0) - theta[:2]).abs() < 5 * sd / (4 * n) ** 0.5).all()
    assert ((torch.cov(points.T) - sigma).abs() < 5 * 2**0.5 * sd[:, None] * sd / (4 * n) ** 0.5).all()


def test_log_likelihood_is_that_of_torch():
    theta, x = TASK.observations("id", 50, seed=0)
    cross = torch.tanh(theta[:, 4]) * theta[:, 2] * theta[:, 3]
    sigma = torch.stack([theta[:, 2] ** 2, cross, cross, theta[:, 3] ** 2], dim=-1).double().reshape(-1, 2, 2)
    both = MultivariateNormal(theta[:, None, :2].double(), sigma[:, None])
    expected = both.log_prob(x[0].double().reshape(1, 4, 2)).sum(-1)
    kept = sigma.det() > 1e-4  # torch works with the covariance itself and loses digits when it is nearly singular
    assert kept.sum() > 25
    assert torch.allclose(TASK.log_likelihood(theta, x[0])[kept].double(), expected[kept], rtol=1e-4, atol=1e-3)


def test_symmetry_group_of_the_density():
    theta, x = TASK.observations("ood", 200, seed=1)
    value = TASK.log_likelihood(theta, x[0])
    for image in IMAGES.float():
        assert torch.allclose(TASK.log_likelihood(theta * image, x[0]), value, rtol=1e-5)
    # The paper's flips: theta_3 alone, theta_4 alone.
    for flip in ([1, 1, -1, 1, 1], [1, 1, 1, -1, 1]):
        changed = TASK.log_likelihood(theta * torch.tensor(flip), x[0])
        assert ((changed - value).abs() > 0.1 * value.abs().clamp(max=1)).double().mean() > 0.5


def test_proposal_is_the_normalised_likelihood():
    # With weights prior, its mean over the proposal times Z is the evidence; so is the mean of L over the prior.
    _, x = TASK.observations("id", 1, seed=0)
    x0 = x[0].double()
    _, log_prior = from_likelihood(x0, SKEW)(400_000, np.random.default_rng(0))
    one = log_prior.exp() * log_evidence(x0).exp()
    other = TASK.log_likelihood(priors.sample(SKEW, 2_000_000, seed=1), x[0]).double().exp()
    error = (one.var() / len(one) + other.var() / len(other)).sqrt()
    assert abs(float(one.mean() - other.mean())) < 4 * float(error)
    assert float(error) < 0.1 * float(one.mean())


@pytest.mark.parametrize("prior", [SKEW, TASK.training_prior("ood")], ids=["skew", "training"])
def test_both_proposals_give_the_same_posterior(prior):
    # The fitted mixture and the plain likelihood, compared by means and second moments.
    _, x = TASK.observations("ood", 3, seed=0)
    x0, n = x[2].double(), 8000
    plain = from_likelihood(x0, prior)
    rng = np.random.default_rng(0)
    fitted = from_mixture(x0, prior, plain, rng)
    first, second = (rejection_sample([proposal], n, rng) for proposal in (plain, fitted))

    def features(theta):
        return torch.cat([theta, theta**2, theta[:, 2:3] * theta[:, 3:4], theta[:, 2:3] * theta[:, 4:5]], dim=-1)

    a, b = features(first), features(second)
    # Twelve features, differences in their standard errors: 4.5 is exceeded once in 12,000 runs.
    z = (a.mean(0) - b.mean(0)) / ((a.var(0) + b.var(0)) / n).sqrt()
    assert z.abs().max() < 4.5


@pytest.mark.parametrize("regime", ["id", "ood"])
def test_reference_is_calibrated(calibration, regime):
    def statistics(theta):
        correlation = torch.tanh(theta[:, 4]) * torch.sign(theta[:, 2] * theta[:, 3])
        return torch.stack([*theta.T, theta[:, 2].abs(), theta[:, 3].abs(), correlation], dim=-1)

    assert min(calibration(TASK, regime, 120, statistics)) > 0.001


def test_paper_variant_differs():
    # Strong correlation: the true posterior keeps the sign of theta_3 theta_4 theta_5, the paper's variant loses it.
    theta_star = torch.tensor([[1.0, 0.5, 0.8, 0.6, 2.0]])
    x = TASK.simulate(theta_star, seed=0)
    exact = TASK.reference(x, 2000, "id", seed=0)
    paper = TASK.paper_reference(x, 2000, "id", seed=0)
    assert paper.shape == (2000, 5)

    def kept(theta):
        return float((theta[:, 2:].prod(-1) > 0).double().mean())

    assert kept(exact) > 0.9
    assert kept(paper) == pytest.approx(0.5, abs=5 * 0.5 / 2000**0.5)
    # What the two agree on: everything but the signs.
    difference = exact.abs().mean(0) - paper.abs().mean(0)
    error = ((exact.abs().var(0) + paper.abs().var(0)) / 2000).sqrt()
    assert (difference.abs() < 5 * error).all()
    # And the paper's draws are far from typical for the likelihood.
    gap = TASK.log_likelihood(exact, x[0]).quantile(0.25) - TASK.log_likelihood(paper, x[0]).quantile(0.25)
    assert float(gap) > 3


def test_points_on_a_line_are_refused():
    with pytest.raises(InputError, match="one line"):
        TASK.reference(torch.arange(8.0), 10, "id")


def test_zero_scales_have_no_likelihood():
    value = TASK.log_likelihood(torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]]), torch.arange(8.0))
    assert float(value) == -torch.inf


def test_registry_gives_this_task():
    assert isinstance(tasks.get("slcp"), Slcp)
