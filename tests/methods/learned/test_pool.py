"""The training set of a learned guidance: its weights, its observations, and what happens where q has no mass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal, Uniform

from reprior_bench import metrics
from reprior.target import make_change
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.methods.learned.pool import joint_pool, posterior_pool, stored, tempered_weights

C = 0.3
POSTERIOR, PRIOR = gaussian_posterior(dim=2, c=C, n=2_000)
TARGET = MultivariateNormal(torch.tensor([0.8, -0.4]), torch.diag(torch.tensor([0.5, 0.7])))
CHANGE = make_change(PRIOR, TARGET, POSTERIOR.scales.theta, seed=0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def pool():
    return posterior_pool(POSTERIOR, CHANGE, 60, 200, Sampler(steps=24), generator())


def test_tempered_weights_are_the_ratio_where_it_is_even_enough():
    log_r = torch.randn(5_000, generator=generator())
    assert torch.allclose(tempered_weights(log_r, 200.0), torch.softmax(log_r, 0))


def test_tempered_weights_reach_the_asked_effective_number():
    log_r = 6 * torch.randn(5_000, generator=generator())
    assert metrics.ess(log_r) * 5_000 < 50
    weights = tempered_weights(log_r, 200.0)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-5)
    # The largest power that keeps 200: the bisection ends within 2^-30 of it.
    assert float(1 / weights.double().square().sum()) == pytest.approx(200.0, rel=1e-3)


def test_tempered_weights_never_give_mass_to_nothing():
    log_r = torch.cat([5 * torch.randn(300, generator=generator()), torch.full((700,), -torch.inf)])
    weights = tempered_weights(log_r, 200.0)
    assert float(weights[300:].sum()) == 0
    assert float(1 / weights.double().square().sum()) == pytest.approx(200.0, rel=1e-3)
    # More than there are: all that have mass count alike.
    assert torch.allclose(tempered_weights(log_r, 400.0)[:300], torch.full((300,), 1 / 300))


def test_target_too_narrow_for_the_stored_simulations():
    tiny = make_change(PRIOR, Uniform(torch.full((2,), 3.9), torch.full((2,), 3.91)), POSTERIOR.scales.theta, 0)
    assert torch.allclose(tempered_weights(torch.full((4,), -torch.inf), 2.0), torch.full((4,), 0.25))
    for make in (posterior_pool, joint_pool):
        with pytest.raises(InputError, match="too narrow to learn a ratio"):
            make(POSTERIOR, tiny, 10, 5, Sampler(steps=4), generator())


def test_posterior_weights_average_to_one_within_each_observation(pool):
    assert pool.theta.shape == (60 * 200, 2)
    assert pool.draws == 200
    assert torch.equal(pool.index, torch.arange(60).repeat_interleave(200))
    each = pool.weight.reshape(60, 200)
    assert torch.allclose(each.mean(1), torch.ones(60), atol=1e-4)
    assert float(pool.weight.min()) >= 0
    wanted = torch.tensor([metrics.ess(w.log()) for w in each]).median()
    assert pool.ess == pytest.approx(float(wanted), rel=1e-4)


def test_draws_follow_the_posterior_of_their_own_observation(pool):
    gap = pool.theta.reshape(60, 200, 2) - POSTERIOR.base.posterior_mean(pool.x).unsqueeze(1)  # pyright: ignore
    sd = float(POSTERIOR.base.cov[0, 0].sqrt())  # pyright: ignore
    # 60 means of 200 draws in two dimensions: standard error 0.071 sd each, the largest of 120 within 3.9 of them.
    assert float(gap.mean(1).abs().max()) < 3.9 * 0.071 * sd
    # 24,000 numbers give the sd within 0.5 %; the 24 steps of the sampler widen it by 1 %.
    assert float(gap.std()) == pytest.approx(sd, rel=0.025)


def test_log_z_is_the_evidence_ratio_of_each_observation(pool):
    wide = C * torch.eye(2)
    q = MultivariateNormal(TARGET.loc, TARGET.covariance_matrix + wide)
    p = MultivariateNormal(PRIOR.loc, PRIOR.covariance_matrix + wide)
    gap = pool.log_z - (q.log_prob(pool.x) - p.log_prob(pool.x))
    # Standard error of the log of a mean of 200 weights: sqrt((1/ESS - 1)/200), some 0.05 at the median ESS.
    assert float(gap.abs().median()) < 0.05
    assert abs(float(gap.mean())) < 0.05


def test_precision_is_that_of_the_posterior(pool):
    exact = torch.linalg.inv(POSTERIOR.base.cov).float()  # pyright: ignore
    # Averaged over 60 observations, relative error sqrt(2 / 12,000) = 1.3 %, and the inverse of a covariance of 200 draws
    # is 1.5 % too large; the sampler widens the sd by 1 %.
    assert torch.allclose(pool.precision.mean(0), exact, atol=0.06 * float(exact.max()))


def test_half_of_the_observations_are_where_the_target_puts_them(pool):
    more = posterior_pool(POSTERIOR, CHANGE, 600, 2, Sampler(steps=4), generator(1))
    # Half plain (mean 0), half from q's marginal (mean 0.8, -0.4); standard error of the mean 1.1 / sqrt(600) = 0.045.
    assert torch.allclose(more.x.mean(0), torch.tensor([0.4, -0.2]), atol=0.15)


def test_observation_that_the_target_excludes_gets_no_weight_and_no_error():
    box = make_change(PRIOR, Uniform(torch.full((2,), 0.5), torch.full((2,), 0.9)), POSTERIOR.scales.theta, 0)
    some = posterior_pool(POSTERIOR, box, 60, 8, Sampler(steps=12), generator())
    each = some.weight.reshape(60, 8)
    empty = each.sum(1) == 0
    assert bool(empty.any())
    assert bool((~empty).any())
    assert torch.allclose(each[~empty].mean(1), torch.ones(int((~empty).sum())), atol=1e-5)
    assert bool(torch.isfinite(some.log_z).all())


def test_joint_pool_holds_the_stored_pairs_and_base_draws_with_joint_weights():
    pool = joint_pool(POSTERIOR, CHANGE, 20, 10, Sampler(steps=12), generator())
    n = 2_000
    assert pool.theta.shape == (n + 200, 2)
    assert pool.draws == 0
    simulations = POSTERIOR.simulations
    assert simulations is not None
    assert torch.equal(pool.x[pool.index[:n]], simulations.x)  # each stored theta still has its own x
    assert torch.equal(pool.theta[:n], simulations.theta)
    expected = torch.softmax(CHANGE.log_r(pool.theta), 0) * (n + 200)
    assert torch.allclose(pool.weight, expected)
    assert float(pool.weight.mean()) == pytest.approx(1.0, abs=1e-4)
    # The base draws lie about the posterior mean of the observation they are filed under: sd 0.48.
    centre = POSTERIOR.base.posterior_mean(pool.x[pool.index[n:]])  # pyright: ignore
    assert float((pool.theta[n:] - centre).abs().mean()) < 0.5


@pytest.mark.parametrize("make", [posterior_pool, joint_pool])
def test_split_holds_out_whole_observations(make):
    pool = make(POSTERIOR, CHANGE, 40, 5, Sampler(steps=4), generator())
    held, kept = pool.split(0.25)
    assert sorted(torch.cat([held, kept]).tolist()) == list(range(len(pool.theta)))
    out, into = set(pool.index[held].tolist()), set(pool.index[kept].tolist())
    assert not out & into
    assert len(out) == pytest.approx(len(pool.x) * 0.25, abs=1)


def test_stored_masks_what_is_not_observed_and_needs_simulations():
    theta, x, _ = stored(POSTERIOR, torch.tensor([True, False]))
    assert bool(torch.isnan(x[:, 1]).all())
    assert not bool(torch.isnan(x[:, 0]).any())
    assert theta.shape == (2_000, 2)
    with pytest.raises(InputError, match=r"needs the stored simulations: use posterior\.with_simulations"):
        stored(replace(POSTERIOR, simulations=None), None)
