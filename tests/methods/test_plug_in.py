"""The plug-in value: exact for Gaussian posteriors at every noise, and for any posterior as the noise goes to zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import gaussian_posterior, problem_of
from scipy import stats as scipy_stats
from torch.distributions import Beta, Independent, Laplace, MultivariateNormal, Uniform

from reprior.errors import RefusedError
from reprior.methods import Problem
from reprior.methods.plug_in import PlugIn, PlugInGuided, plug_in_value, posterior_draws, precision_of
from reprior.methods.transport import Transported
from reprior.target import make_change

stats: Any = scipy_stats  # its annotations take numbers only

POSTERIOR, PRIOR = gaussian_posterior(dim=2, c=0.3, rho=0.4)
SCALE = POSTERIOR.scales.theta
NARROW = make_change(
    PRIOR, MultivariateNormal(torch.tensor([0.5, -0.5]), torch.tensor([[0.5, 0.2], [0.2, 0.4]])), SCALE, 0
)
WIDE = make_change(PRIOR, MultivariateNormal(torch.tensor([0.3, 0.0]), 3 * torch.eye(2)), SCALE, 0)
LAPLACE = make_change(PRIOR, Independent(Laplace(torch.zeros(2), torch.full((2,), 0.6)), 1), SCALE, 0)
X = torch.tensor([[0.4, 0.2], [-1.0, 0.8]])
EXACT_PRECISION = torch.linalg.inv(POSTERIOR.base.cov).float().expand(2, 2, 2)  # pyright: ignore


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def states(s: float) -> torch.Tensor:
    return (1 + s) * torch.randn(50, 2, 2, generator=generator())


def test_outside_the_bounds_of_q_nothing_is_added():
    flat = Independent(Uniform(torch.full((2,), -3.0), torch.full((2,), 3.0)), 1)
    beta = make_change(flat, [Beta(torch.tensor(2.0), torch.tensor(2.0))] * 2, SCALE, 0)
    base = POSTERIOR.condition(X[:1])
    guided = PlugInGuided(base, beta, beta.quadratic, torch.eye(2).expand(1, 2, 2))
    z, s = torch.full((1, 1, 2), -2.0), torch.tensor(0.1)
    assert torch.equal(guided.mean(z, s), base.mean(z, s))


@pytest.mark.parametrize("s", [0.02, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("power", [1.0, 0.4])
def test_guided_mean_is_exact_for_a_gaussian_posterior(s, power):
    base, quadratic = POSTERIOR.condition(X), NARROW.quadratic
    guided = PlugInGuided(base, NARROW, quadratic, EXACT_PRECISION, power)
    z = states(s)
    want = Transported(base, quadratic.scaled(power)).mean(z, torch.tensor(s))
    assert torch.allclose(guided.mean(z, torch.tensor(s)), want, atol=2e-4)


def test_value_is_the_log_expectation_up_to_the_noise_alone():
    # log E[r(theta_0) | z] by draws of theta_0 | z, which is N(mu, V): differences between states must agree.
    quadratic, s = NARROW.quadratic, torch.tensor(0.6)
    base = POSTERIOR.condition(X[:1])
    z = states(0.6)[:8, :1]
    mean = base.mean(z, s)
    cov = torch.linalg.inv(EXACT_PRECISION[0] + torch.eye(2) / s**2)
    noise = torch.randn(100_000, 1, 1, 2, generator=generator(1)) @ torch.linalg.cholesky(cov).T
    brute = torch.logsumexp(NARROW(mean + noise), 0) - torch.log(torch.tensor(1e5))
    ours = plug_in_value(NARROW, quadratic, mean, s, EXACT_PRECISION[:1])
    gap = (ours - brute)[:, 0]
    assert float(gap.max() - gap.min()) < 0.03  # Monte Carlo error of each: sqrt(Var r / 1e5) / E r, under 0.007


def test_any_ratio_is_exact_as_the_noise_goes_to_zero():
    base, s = POSTERIOR.condition(X), torch.tensor(0.01)
    quadratic = LAPLACE.quadratic
    assert not quadratic.exact
    z = states(0.01)
    guided = PlugInGuided(base, LAPLACE, quadratic, EXACT_PRECISION)
    mean = base.mean(z, s).requires_grad_(True)
    (gradient,) = torch.autograd.grad(LAPLACE(mean).sum(), mean)
    # s^2 grad log r, the Jacobian of the mean being one up to s^2 / variance = 5e-4.
    want = base.mean(z, s) + s**2 * gradient
    assert torch.allclose(guided.mean(z, s), want, atol=2e-3 * float((s**2 * gradient).abs().max()))


def test_one_level_per_row_gives_the_same_as_one_for_all():
    base, quadratic = POSTERIOR.condition(X), NARROW.quadratic
    mean = base.mean(states(0.5), torch.tensor(0.5))
    one = plug_in_value(NARROW, quadratic, mean, torch.tensor(0.5), EXACT_PRECISION)
    rows = plug_in_value(NARROW, quadratic, mean, torch.full((50, 2, 1), 0.5), EXACT_PRECISION)
    assert one.shape == (50, 2)
    assert torch.allclose(one, rows, atol=1e-5)


def test_where_the_expectation_does_not_exist_the_ratio_at_the_mean_is_kept():
    # q so much wider than p that V^-1 + L is not positive without the posterior's own precision and at high noise.
    quadratic = WIDE.quadratic
    mean = states(1.0)
    none = torch.zeros(2, 2, 2)
    high = plug_in_value(WIDE, quadratic, mean, torch.tensor(5.0), none)
    assert torch.allclose(high, WIDE(mean), atol=1e-3)
    low = plug_in_value(WIDE, quadratic, mean, torch.tensor(0.5), none)
    assert float((low - WIDE(mean)).abs().max()) > 0.01


def test_precision_is_the_inverse_covariance_of_the_draws():
    draws = posterior_draws(POSTERIOR.condition(X), generator())
    assert draws.shape == (200, 2, 2)
    many = torch.cat([posterior_draws(POSTERIOR.condition(X), generator(i)) for i in range(30)])
    found = precision_of(many, 2)
    # 6,000 draws: relative error sqrt(2/6000) = 1.8 % of the largest; their 16 steps widen the sd by some 3 %.
    assert torch.allclose(found, EXACT_PRECISION, atol=0.13 * float(EXACT_PRECISION.abs().max()))
    flat = precision_of(torch.zeros(20, 1, 2), 2)
    assert bool(torch.isfinite(flat).all())  # identical draws: large, not infinite


def test_guidance_measures_the_precision_itself():
    guided = PlugIn(Problem(POSTERIOR, NARROW)).guide(POSTERIOR.condition(X), generator())
    want = Transported(POSTERIOR.condition(X), NARROW.quadratic)
    for s in (0.1, 1.0):
        z, level = states(s), torch.tensor(s)
        size = float((want.mean(z, level) - POSTERIOR.condition(X).mean(z, level)).square().mean().sqrt())
        error = float((guided.mean(z, level) - want.mean(z, level)).square().mean().sqrt())
        assert error < 0.12 * size  # 200 draws know the variance within 10 %


def test_a_ratio_without_gradient_is_refused_unless_it_is_quadratic():
    laplace = Independent(Laplace(torch.zeros(2), torch.full((2,), 0.6)), 1)
    blind = problem_of(POSTERIOR, lambda theta: laplace.log_prob(theta).detach())
    with pytest.raises(RefusedError, match="plug_in guides by the gradient of log r, and this one has none"):
        PlugIn(blind)
    frozen = stats.multivariate_normal([0.5, -0.5], [[0.5, 0.2], [0.2, 0.4]])
    guided = PlugIn(problem_of(POSTERIOR, frozen)).guide(POSTERIOR.condition(X), generator())
    same = PlugIn(Problem(POSTERIOR, NARROW)).guide(POSTERIOR.condition(X), generator())
    z = states(0.5)
    assert torch.allclose(guided.mean(z, torch.tensor(0.5)), same.mean(z, torch.tensor(0.5)), atol=1e-3)
