"""Importance resampling: systematic counts, copies, ESS against its closed form, and what its weights warn of."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from exact import exact_posterior, gaussian_posterior, problem_of
from torch import Tensor
from torch.distributions import MultivariateNormal, Uniform

import reprior
from reprior.errors import InputError
from reprior.methods import SIRSettings
from reprior.methods.sir import SIR
from reprior.weights import multinomial, pareto_k, relative_ess, systematic

C = 0.3
POSTERIOR, PRIOR = gaussian_posterior(dim=2, c=C)
PRIOR_AGAIN = MultivariateNormal(torch.full((2,), 0.01), torch.eye(2))  # hardly a change


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def log_moment(mean: Tensor, cov: Tensor, L: Tensor, h: Tensor) -> float:
    """log E[exp(-theta' L theta / 2 + h' theta)] under N(mean, cov)."""
    inverse = torch.linalg.inv(cov)
    total, point = inverse + L, inverse @ mean + h
    value = point @ torch.linalg.solve(total, point) - mean @ inverse @ mean - torch.logdet(cov) - torch.logdet(total)
    return float(value) / 2


# --- systematic resampling -------------------------------------------------------------------------------------------


def test_every_member_is_kept_as_often_as_its_weight_says():
    log_w = torch.randn(50, generator=generator())
    n = 1_000
    counts = torch.bincount(systematic(log_w, n, generator()), minlength=50)
    wanted = n * torch.softmax(log_w.double(), 0)
    assert bool((counts >= wanted.floor() - 1e-9).all())
    assert bool((counts <= wanted.ceil() + 1e-9).all())


def test_no_copies_while_no_weight_exceeds_its_share():
    log_w = 0.3 * torch.rand(5_000, generator=generator())
    index = systematic(log_w, 3_000, generator())
    assert len(index.unique()) == 3_000
    assert not torch.equal(index, index.sort().values)  # in random order


def test_with_replacement_there_are_copies_of_equal_weights():
    n = 5_000
    counts = torch.bincount(multinomial(torch.zeros(n), n, generator()), minlength=n)
    never = (1 - 1 / n) ** n  # of members that are never drawn
    assert abs(float((counts == 0).float().mean()) - never) < 5 * math.sqrt(never * (1 - never) / n)
    log_w = torch.randn(50, generator=generator())
    wanted = torch.softmax(log_w.double(), 0)
    shares = torch.bincount(multinomial(log_w, 20_000, generator()), minlength=50) / 20_000
    assert float(((shares - wanted) / (wanted * (1 - wanted) / 20_000).sqrt()).abs().max()) < 5
    few = reprior.adapt(POSTERIOR, PRIOR_AGAIN, "sir", SIRSettings(2_000, resampling="multinomial"))
    none = reprior.adapt(POSTERIOR, PRIOR_AGAIN, "sir", SIRSettings(2_000))
    copies = [a.sample((2_000,), torch.zeros(2), return_info=True)[1].figures["duplicates"][0] for a in (few, none)]
    assert copies[0] > 600 > 100 > copies[1]
    with pytest.raises(InputError, match="resampling 'jackknife' is unknown; allowed: systematic, multinomial"):
        SIRSettings(resampling="jackknife")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("resample", [systematic, multinomial])
def test_members_without_weight_are_never_kept(resample):
    log_w = torch.cat([torch.full((100,), -torch.inf), torch.zeros(3)])
    assert int(resample(log_w, 500, generator()).min()) >= 100
    with pytest.raises(InputError, match="all weights are zero"):
        resample(torch.full((10,), -torch.inf), 5, generator())


# --- SIR -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "variance"), [(0.5, 0.6), (1.2, 0.5), (0.0, 2.0)])
def test_ess_is_that_of_gaussian_weights(shift, variance):
    target = MultivariateNormal(torch.tensor([shift, 0.0]), variance * torch.eye(2))
    x = torch.tensor([0.4, -0.2])
    adapted = reprior.adapt(POSTERIOR, target, "sir")
    _, info = adapted.sample((1_000,), x, seed=0, return_info=True)
    quadratic = adapted.change.quadratic
    p = exact_posterior(PRIOR, x, C)
    mean, cov = p.loc.double(), p.covariance_matrix.double()
    first, second = (log_moment(mean, cov, k * quadratic.L, k * quadratic.h) for k in (1, 2))
    # 20,000 weights: the relative error of a sum of squares is sqrt(Var(r^2) / 20000) / E[r^2], some 2 %, and a pool whose
    # sd is 1 % too wide (32 steps) moves it by as much.
    assert info.relative_ess == (pytest.approx(math.exp(2 * first - second), rel=0.05),)


def test_resampled_draws_have_the_moments_of_the_target():
    target = MultivariateNormal(torch.tensor([0.6, -0.4]), torch.tensor([[0.5, 0.2], [0.2, 0.6]]))
    x = torch.tensor([0.4, -0.2])
    theta, info = reprior.adapt(POSTERIOR, target, "sir").sample((4_000,), x, seed=0, return_info=True)
    exact = exact_posterior(target, x, C)
    ess = info.relative_ess[0]
    n = 20_000 * ess / (1 + 5 * ess)  # both the pool and the draws are finite
    assert torch.allclose(theta.mean(0), exact.mean, atol=4 * float(exact.stddev.max()) / math.sqrt(n))
    assert torch.allclose(torch.cov(theta.T), exact.covariance_matrix, atol=0.05 * float(exact.variance.max()))
    assert info.figures["duplicates"] == (4_000 - len(theta.unique(dim=0)),)


def test_duplicates_are_counted_for_each_observation():
    target = MultivariateNormal(torch.tensor([2.5, 2.5]), 0.1 * torch.eye(2))
    adapted = reprior.adapt(POSTERIOR, target, "sir", SIRSettings(pool=2_000))
    x = torch.tensor([[1.5, 1.5], [-1.0, -1.0]])
    theta, info = adapted.sample_batched((500,), x, seed=0, return_info=True)
    found = [500 - len(theta[:, k].unique(dim=0)) for k in range(2)]
    assert info.figures["duplicates"] == tuple(found)
    assert found[1] > found[0] > 0
    assert info.relative_ess[0] > info.relative_ess[1]
    assert any("the relative ESS of the prior-ratio weights is" in text for text in info.warnings)


def test_an_observation_that_the_target_excludes_fails_alone():
    box = problem_of(POSTERIOR, Uniform(torch.full((2,), 0.5), torch.full((2,), 0.7)))
    both = POSTERIOR.condition(torch.tensor([[-9.0, -9.0], [0.6, 0.6]]))
    drawn = SIR(box, SIRSettings(pool=2_000)).draw(both, 10, reprior.Sampler(), generator())
    assert list(drawn.failed) == [0]
    assert "no base sample has mass under the target prior" in drawn.failed[0]
    assert torch.isfinite(drawn.theta).all(-1).all(0).tolist() == [False, True]
    assert math.isnan(drawn.figures["duplicates"][0])


def test_settings_and_the_missing_denoiser():
    with pytest.raises(InputError, match="pool must be at least 2; got 1"):
        SIRSettings(pool=1)
    sir = SIR(problem_of(POSTERIOR, PRIOR_AGAIN))
    with pytest.raises(InputError, match="method 'sir' works on samples and gives no guided denoiser"):
        sir.guide(POSTERIOR.condition(torch.zeros(1, 2)), generator())
    assert sir.config() == {"settings": {"pool": 20_000, "resampling": "systematic"}}
    assert sir.tensors() == {}
    assert sir.lighter(300).settings.pool == 300


# --- diagnostics of weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0.2, 0.5, 1.0])
def test_k_hat_is_the_shape_of_pareto_weights(k):
    # w = u^-k has P(w > t) = t^(-1/k): the log weights are exponential with mean k.
    u = torch.rand(20_000, generator=generator(), dtype=torch.float64)
    # The tail has 3 sqrt(20000) = 424 weights: standard error (1 + k) / sqrt(424) = 0.05 (1 + k).
    assert pareto_k(-k * u.log()) == pytest.approx(k, abs=0.15 * (1 + k))


def test_k_hat_of_special_weights():
    assert pareto_k(torch.zeros(100)) == -math.inf  # equal weights have no tail
    assert pareto_k(torch.randn(20)) == math.inf  # too few to say
    few = torch.cat([torch.full((1_000,), -torch.inf), torch.randn(10)])
    assert pareto_k(few) == math.inf  # zero weights do not count
    steps = torch.where(torch.rand(2_000, generator=generator()) < 0.7, math.log(4.0), 0.0)
    assert pareto_k(steps) == -math.inf  # the largest weights are all the same
    bounded = torch.rand(5_000, generator=generator()).log()  # uniform weights: a bounded tail
    assert pareto_k(bounded) < 0
    shifted = -0.5 * torch.rand(5_000, generator=generator(), dtype=torch.float64).log()
    assert pareto_k(shifted) == pytest.approx(pareto_k(shifted + 300), abs=1e-6)


def test_k_hat_is_unknown_without_arviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    assert math.isnan(pareto_k(torch.randn(100)))


def test_relative_ess_is_that_of_its_definition():
    log_w = torch.randn(100, generator=generator())
    w = log_w.double().exp()
    assert relative_ess(log_w) == pytest.approx(float(w.sum() ** 2 / w.square().sum()) / 100)
    assert relative_ess(log_w + 1_000) == pytest.approx(relative_ess(log_w), rel=1e-4)  # rounding of the sum
    assert relative_ess(torch.full((7,), -3.0)) == pytest.approx(1.0)
    assert relative_ess(torch.cat([torch.zeros(3), torch.full((9,), -torch.inf)])) == pytest.approx(0.25)
    assert relative_ess(torch.full((5,), -torch.inf)) == 0.0
    with pytest.raises(InputError, match=r"must be finite or -inf; got NaN or \+inf"):
        relative_ess(torch.tensor([0.0, torch.nan]))
