"""The training set of a learned ratio: its weights, its observations, and what happens where q has no mass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact import gaussian_posterior, problem_of
from torch.distributions import MultivariateNormal, Uniform

from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError, RefusedError
from reprior.methods import Problem
from reprior.methods.learned import RatioSettings
from reprior.methods.learned.training_set import TrainingSet, _stored, make_training_set
from reprior.weights import relative_ess

C = 0.3
POSTERIOR, PRIOR = gaussian_posterior(dim=2, c=C, n=2_000)
TARGET = MultivariateNormal(torch.tensor([0.8, -0.4]), torch.diag(torch.tensor([0.5, 0.7])))
PROBLEM = problem_of(POSTERIOR, TARGET)


def made(
    problem: Problem, observations: int, draws: int, steps: int, weights: str = "posterior", seed: int = 0
) -> TrainingSet:
    settings = RatioSettings(
        weights=weights,  # pyright: ignore[reportArgumentType]
        observations=observations,
        draws=draws,
        sampler=Sampler(steps=steps),
    )
    return make_training_set(problem, settings, seed)


@pytest.fixture(scope="module")
def data():
    return made(PROBLEM, 60, 200, 24)


def test_target_too_narrow_for_the_stored_simulations():
    tiny = problem_of(POSTERIOR, Uniform(torch.full((2,), 3.9), torch.full((2,), 3.91)))
    for weights in ("posterior", "joint"):
        with pytest.raises(RefusedError, match="too narrow to learn a ratio"):
            made(tiny, 10, 5, 4, weights)


def test_posterior_weights_average_to_one_within_each_observation(data):
    assert data.theta.shape == (60 * 200, 2)
    assert data.draws == 200
    assert torch.equal(data.index, torch.arange(60).repeat_interleave(200))
    each = data.weight.reshape(60, 200)
    assert torch.allclose(each.mean(1), torch.ones(60), atol=1e-4)
    assert float(data.weight.min()) >= 0
    wanted = torch.tensor([relative_ess(w.log()) for w in each]).median()
    assert data.ess == pytest.approx(float(wanted), rel=1e-4)


def test_draws_follow_the_posterior_of_their_own_observation(data):
    gap = data.theta.reshape(60, 200, 2) - POSTERIOR.base.posterior_mean(data.x).unsqueeze(1)  # pyright: ignore
    sd = float(POSTERIOR.base.cov[0, 0].sqrt())  # pyright: ignore
    # 60 means of 200 draws in two dimensions: standard error 0.071 sd each, the largest of 120 within 3.9 of them.
    assert float(gap.mean(1).abs().max()) < 3.9 * 0.071 * sd
    # 24,000 numbers give the sd within 0.5 %; the 24 steps of the sampler widen it by 1 %.
    assert float(gap.std()) == pytest.approx(sd, rel=0.025)


def test_log_z_is_the_evidence_ratio_of_each_observation(data):
    wide = C * torch.eye(2)
    q = MultivariateNormal(TARGET.loc, TARGET.covariance_matrix + wide)
    p = MultivariateNormal(PRIOR.loc, PRIOR.covariance_matrix + wide)
    gap = data.log_z - (q.log_prob(data.x) - p.log_prob(data.x))
    # Standard error of the log of a mean of 200 weights: sqrt((1/ESS - 1)/200), some 0.05 at the median ESS.
    assert float(gap.abs().median()) < 0.05
    assert abs(float(gap.mean())) < 0.05


def test_precision_is_that_of_the_posterior(data):
    exact = torch.linalg.inv(POSTERIOR.base.cov).float()  # pyright: ignore
    # Averaged over 60 observations, relative error sqrt(2 / 12,000) = 1.3 %, and the inverse of a covariance of 200 draws
    # is 1.5 % too large; the sampler widens the sd by 1 %.
    assert torch.allclose(data.precision.mean(0), exact, atol=0.06 * float(exact.max()))


def test_half_of_the_observations_are_where_the_target_puts_them():
    more = made(PROBLEM, 600, 2, 4, seed=1)
    # Half plain (mean 0), half from q's marginal (mean 0.8, -0.4); standard error of the mean 1.1 / sqrt(600) = 0.045.
    assert torch.allclose(more.x.mean(0), torch.tensor([0.4, -0.2]), atol=0.15)


def test_observation_that_the_target_excludes_gets_no_weight_and_no_error():
    box = problem_of(POSTERIOR, Uniform(torch.full((2,), 0.5), torch.full((2,), 0.9)))
    some = made(box, 60, 8, 12)
    each = some.weight.reshape(60, 8)
    empty = each.sum(1) == 0
    assert bool(empty.any())
    assert bool((~empty).any())
    assert torch.allclose(each[~empty].mean(1), torch.ones(int((~empty).sum())), atol=1e-5)
    assert bool(torch.isfinite(some.log_z).all())


def test_joint_training_set_holds_the_stored_pairs_and_base_draws_with_joint_weights():
    data = made(PROBLEM, 20, 10, 12, "joint")
    n = 2_000
    assert data.theta.shape == (n + 200, 2)
    assert data.draws == 0
    simulations = POSTERIOR.simulations
    assert simulations is not None
    assert torch.equal(data.x[data.index[:n]], simulations.x)  # each stored theta still has its own x
    assert torch.equal(data.theta[:n], simulations.theta)
    expected = torch.softmax(PROBLEM.change.log_r(data.theta), 0) * (n + 200)
    assert torch.allclose(data.weight, expected)
    assert float(data.weight.mean()) == pytest.approx(1.0, abs=1e-4)
    # The base draws lie about the posterior mean of the observation they are filed under: sd 0.48.
    centre = POSTERIOR.base.posterior_mean(data.x[data.index[n:]])  # pyright: ignore
    assert float((data.theta[n:] - centre).abs().mean()) < 0.5


@pytest.mark.parametrize("weights", ["posterior", "joint"])
def test_split_holds_out_whole_observations(weights):
    data = made(PROBLEM, 40, 5, 4, weights)
    held, kept = data.split(0.25)
    assert sorted(torch.cat([held, kept]).tolist()) == list(range(len(data.theta)))
    out, into = set(data.index[held].tolist()), set(data.index[kept].tolist())
    assert not out & into
    assert len(out) == pytest.approx(len(data.x) * 0.25, abs=1)


def test_what_is_not_observed_is_masked():
    theta, x, whole = _stored(replace(PROBLEM, observed=torch.tensor([True, False])))
    assert bool(torch.isnan(x[:, 1]).all())
    assert torch.equal(x[:, 0], whole[:, 0])
    assert bool(torch.isfinite(whole).all())
    assert theta.shape == (2_000, 2)


@pytest.mark.parametrize("weights", ["posterior", "joint"])
def test_a_training_set_needs_the_stored_simulations(weights):
    bare = replace(PROBLEM, posterior=replace(POSTERIOR, simulations=None))
    with pytest.raises(InputError, match=r"needs the stored simulations: use posterior\.with_simulations"):
        made(bare, 20, 10, 4, weights)


def test_weights_of_a_transported_base_are_those_of_the_rest():
    # All of this change is Gaussian: once it is transported, there is nothing left to weigh.
    settings = RatioSettings(observations=20, draws=50, sampler=Sampler(steps=48))
    data = make_training_set(PROBLEM, settings, 0, PROBLEM.change.quadratic)
    assert data.ess > 0.9999
    assert torch.allclose(data.weight, torch.ones(1_000), atol=1e-3)
    # Draws are of q(theta | x): N(cov (P_q^-1 m + x / C), cov).
    precision = torch.linalg.inv(TARGET.covariance_matrix)
    cov = torch.linalg.inv(precision + torch.eye(2) / C)
    centre = (precision @ TARGET.loc + data.x / C) @ cov
    gap = data.theta.reshape(20, 50, 2) - centre.unsqueeze(1)
    # 2,000 numbers: standard error 0.016 sd of the width, which 48 steps change by less.
    assert torch.allclose(gap.reshape(-1, 2).std(0), cov.diagonal().sqrt(), rtol=0.08)
    assert float(gap.mean((0, 1)).abs().max()) < 4 * float(cov.max()) ** 0.5 / 1_000**0.5
