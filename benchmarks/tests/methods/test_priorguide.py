"""PriorGuide against its closed form, with the Jacobian of the exact base; its Monte Carlo variant likewise."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from exact import exact_posterior, gaussian_posterior
from scipy import stats as scipy_stats
from torch import Tensor
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal, Uniform

import reprior
import reprior_bench.methods.priorguide_mc as monte_carlo
from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser, Wrapped
from reprior.errors import InputError
from reprior.methods import Problem
from reprior.methods.transport import Transported
from reprior.quadratic import Quadratic
from reprior.standardizer import Standardizer
from reprior.target import make_change
from reprior_bench.methods.priorguide import MixtureRatio, PriorGuide, PriorGuideSettings, _Guided, fit_mixture
from reprior_bench.methods.priorguide_mc import MonteCarloSettings, PriorGuideMonteCarlo

stats: Any = scipy_stats  # its annotations take numbers only

C = 0.3
X = torch.tensor([[0.4, 0.2], [-1.0, 0.8]])
PLAIN, PLAIN_PRIOR = gaussian_posterior(dim=2, c=C)  # posterior variance v I
CORRELATED, PRIOR = gaussian_posterior(dim=2, c=C, rho=0.6)
TARGET = MultivariateNormal(torch.tensor([0.5, -0.3]), torch.diag(torch.tensor([0.3, 0.6])))
BASE = Path(__file__).parents[2] / "results" / "bases" / "two_moons-id-mlp-best.safetensors"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def changed(target: Any) -> PriorChange:
    return make_change(PRIOR, target, CORRELATED.scales.theta, 0)


def monte_carlo_method(change: PriorChange, draws: int = 1_000) -> PriorGuideMonteCarlo:
    return PriorGuideMonteCarlo(Problem(CORRELATED, change), MonteCarloSettings(draws=draws))


def ratio(means: Tensor, scales: Tensor, log_weights: Tensor) -> MixtureRatio:
    mixture = MixtureRatio(means)
    mixture.log_scales.data = scales.log()
    mixture.log_weights.data = log_weights
    return mixture.requires_grad_(False)


ONE = ratio(torch.tensor([[0.7, -0.2]]), torch.tensor([[0.5, 0.8]]), torch.zeros(1))
THREE = ratio(
    torch.tensor([[0.7, -0.2], [-1.0, 0.4], [0.0, 1.0]]),
    torch.tensor([[0.5, 0.8], [0.3, 0.3], [1.0, 0.6]]),
    torch.tensor([0.0, 1.0, -0.5]),
)


@pytest.mark.parametrize("s", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("mixture", [ONE, THREE], ids=["one", "three"])
def test_guided_mean_is_the_closed_form(s, mixture):
    base = CORRELATED.condition(X)
    pooled = torch.tensor([[0.2], [0.35]])
    z = (1 + s) * torch.randn(20, 2, 2, generator=generator())
    guided = _Guided(base, mixture, pooled).mean(z, torch.tensor(s))
    mu = base.mean(z, torch.tensor(s))
    cov = CORRELATED.base.cov.float()  # pyright: ignore
    jacobian = cov @ torch.linalg.inv(cov + s**2 * torch.eye(2))
    extra = 1 / (1 / pooled + 1 / s**2)  # Sig, one for each observation
    var = (2 * mixture.log_scales).exp() + extra.unsqueeze(-1)  # S_k + Sig, with shape (K, k, d)
    gap = mixture.means - mu.unsqueeze(-2)
    log = -0.5 * (gap**2 / var + var.log()).sum(-1) + mixture.log_weights
    u = (torch.softmax(log, -1).unsqueeze(-1) * gap / var).sum(-2)
    assert torch.allclose(guided, mu + s**2 * u @ jacobian, atol=1e-4)


@pytest.mark.parametrize("s", [0.05, 0.5, 3.0])
def test_exact_for_one_gaussian_over_a_round_gaussian_posterior(s):
    # Then Sig is the true variance of theta_0 given z, and log E[r] has no approximation left.
    base = PLAIN.condition(X)
    v = float(PLAIN.base.cov[0, 0])  # pyright: ignore
    z = (1 + s) * torch.randn(20, 2, 2, generator=generator())
    precision = (-2 * ONE.log_scales[0]).exp().double()
    quadratic = Quadratic(torch.diag(precision), precision * ONE.means[0].double(), 0.0, 0.0)
    want = Transported(base, quadratic).mean(z, torch.tensor(s))
    guided = _Guided(base, ONE, torch.full((2, 1), v)).mean(z, torch.tensor(s))
    assert torch.allclose(guided, want, atol=1e-4)


def test_variance_is_pooled_over_the_draws_of_each_observation():
    method = PriorGuide(Problem(CORRELATED, changed(TARGET)), PriorGuideSettings(), ONE)
    guided = method.guide(CORRELATED.condition(X), generator())
    pooled = guided.pooled  # pyright: ignore[reportAttributeAccessIssue]
    v = float(CORRELATED.base.cov.diagonal().mean())  # pyright: ignore
    assert pooled.shape == (2, 1)
    # 200 draws of two parameters: relative error sqrt(2 / 400) = 7 %; their 16 steps widen the variance by 7 %.
    assert torch.allclose(pooled, torch.full((2, 1), v), rtol=0.35)


def test_fit_finds_a_ratio_that_is_one_gaussian():
    # p uniform on the unit square: log r = log q, in standardised units one Gaussian times a constant.
    prior = Uniform(torch.zeros(2), torch.ones(2))
    target = Independent(Normal(torch.tensor([0.4, 0.55]), torch.tensor([0.08, 0.05])), 1)
    scale = Standardizer(torch.full((2,), 0.5), torch.full((2,), 0.1))
    change = make_change(reprior.priors.as_prior(prior), target, scale, 0)
    settings = PriorGuideSettings(components=1, steps=1_000, learning_rate=0.05)
    mixture = fit_mixture(change, settings, seed=0)
    assert torch.allclose(mixture.means[0], scale.forward(target.mean), atol=0.05)
    assert torch.allclose(mixture.log_scales[0].exp(), target.stddev / 0.1, rtol=0.05)
    theta = target.sample(torch.Size((100,)))
    assert torch.allclose(mixture(scale.forward(theta), torch.zeros(2)), target.log_prob(theta), atol=0.1)
    again = fit_mixture(change, PriorGuideSettings(components=3, steps=2), seed=0)
    assert torch.equal(again.means, fit_mixture(change, PriorGuideSettings(components=3, steps=2), seed=0).means)


def test_fit_holds_a_ratio_that_grows_beyond_any_density():
    # q three standard deviations out: log r is linear, up to some 12 within q, which no density of q's width reaches.
    target = MultivariateNormal(torch.tensor([3.0, 0.0]), torch.eye(2))
    change = make_change(PLAIN_PRIOR, target, PLAIN.scales.theta, 0)
    mixture = fit_mixture(change, PriorGuideSettings(components=20, steps=1_000, learning_rate=0.02), seed=0)
    z = change.scale.forward(change.draw(2_000, seed=1))
    log_r = change(z)
    error = mixture(z, torch.zeros(2)) - log_r
    assert float(error.square().mean().sqrt()) < 0.1 * float(log_r.std())


@pytest.mark.parametrize("s", [0.3, 2.0])
def test_monte_carlo_variant_is_the_closed_form_of_its_own_kernel(s):
    # theta_0 | z taken as N(mu, k I), k = (1 + 1/s^2)^-1: for a quadratic log r the slope at mu is (I + k L)^-1 (h - L mu).
    change = changed(TARGET)
    quadratic = change.quadratic
    base = CORRELATED.condition(X)
    z = (1 + s) * torch.randn(6, 2, 2, generator=generator())
    guided = monte_carlo_method(change, 20_000).guide(base, generator())
    got = guided.mean(z, torch.tensor(s))
    mu = base.mean(z, torch.tensor(s)).double()
    k = 1 / (1 + 1 / s**2)
    slope = quadratic.h - mu @ quadratic.L
    u = torch.linalg.solve(torch.eye(2).double() + k * quadratic.L, slope.unsqueeze(-1))[..., 0]
    cov = CORRELATED.base.cov  # pyright: ignore
    jacobian = cov @ torch.linalg.inv(cov + s**2 * torch.eye(2).double())
    want = s**2 * u @ jacobian
    # The slope's own spread sqrt(k) |L| over 20,000 draws: some 1 % of the guidance where the weights are uneven.
    error = (got - mu - want).square().mean().sqrt()
    assert float(error / want.square().mean().sqrt()) < 0.04


def test_blocks_of_draws_do_not_change_the_answer(monkeypatch):
    change = changed(TARGET)
    base = CORRELATED.condition(X)
    z = torch.randn(6, 2, 2, generator=generator())
    guided = monte_carlo_method(change, 4_000).guide(base, generator())
    whole = guided.mean(z, torch.tensor(0.5))
    monkeypatch.setattr(monte_carlo, "ROWS", 8_000)
    guided = monte_carlo_method(change, 4_000).guide(base, generator(1))
    parts = guided.mean(z, torch.tensor(0.5))
    assert torch.allclose(parts, whole, atol=0.03)  # other draws, the same average


@pytest.mark.parametrize("method", ["priorguide", "priorguide_mc"])
def test_samples_reach_the_target_where_their_kernel_is_right(method):
    # A round posterior of variance v, and a ratio that is one Gaussian times a constant. The Monte Carlo variant takes v = 1,
    # which leaves it a little off.
    settings = {
        "priorguide": PriorGuideSettings(components=1, steps=1_000, learning_rate=0.05, corrections=2),
        "priorguide_mc": MonteCarloSettings(draws=50, corrections=1),
    }
    adapted = reprior.adapt(PLAIN, TARGET, method, settings[method])
    n = 800
    theta = adapted.sample((n,), x=X[0], seed=0)
    exact = exact_posterior(TARGET, X[0], C)
    assert float(((theta.mean(0) - exact.mean) / exact.stddev).abs().max()) < 4 / math.sqrt(n) + 0.05
    assert float((theta.std(0) / exact.stddev - 1).abs().max()) < 4 / math.sqrt(2 * n) + 0.05


def test_refusals():
    blind = changed(stats.multivariate_normal([0.5, 0.5], [0.3, 0.6]))
    with pytest.raises(InputError, match="needs a log r that autograd can differentiate"):
        monte_carlo_method(blind)
    with pytest.raises(InputError, match="draws must be at least 1"):
        MonteCarloSettings(draws=0)
    with pytest.raises(InputError, match="corrections at least 0; got"):
        MonteCarloSettings(corrections=-1)
    for bad in ({"components": 0}, {"steps": 0}, {"batch": 0}, {"corrections": -1}):
        with pytest.raises(InputError, match="components, steps and batch must be at least 1"):
            PriorGuideSettings(**bad)


def test_corrections_of_the_settings_are_used():
    problem = Problem(CORRELATED, changed(Independent(Laplace(torch.zeros(2), torch.ones(2)), 1)))
    assert PriorGuide(problem, PriorGuideSettings(corrections=3), ONE).corrections == 3
    assert PriorGuideMonteCarlo(problem).corrections == 8


@pytest.mark.parametrize("method", ["priorguide", "priorguide_mc"])
def test_a_file_holds_the_method(method, tmp_path):
    settings = {"priorguide": PriorGuideSettings(components=3, steps=20), "priorguide_mc": MonteCarloSettings(draws=10)}
    posterior = reprior.load(BASE)
    q = Independent(Normal(torch.zeros(2), 0.5 * torch.ones(2)), 1)
    adapted = reprior.adapt(posterior, q, method, settings[method])
    again = reprior.load(adapted.save(tmp_path / "adapted"))
    assert again.method.settings == settings[method]
    x = torch.zeros(2)
    assert torch.equal(adapted.sample((20,), x=x, seed=1), again.sample((20,), x=x, seed=1))


def test_the_constant_of_an_unnormalised_target_does_not_matter():
    settings = PriorGuideSettings(components=5, steps=50)
    known = fit_mixture(changed(TARGET), settings, seed=0)
    fits = [fit_mixture(changed(lambda theta, c=c: TARGET.log_prob(theta) + c), settings, seed=0) for c in (0.0, 50.0)]
    assert torch.allclose(fits[0].means, fits[1].means, atol=1e-3)
    # Without q's own draws other points are fitted, to the same ratio.
    theta = torch.zeros(1, 2)
    assert abs(float(fits[0](theta, torch.zeros(2)) - known(theta, torch.zeros(2)))) < 1.0


class Elsewhere(Wrapped):
    """A base on another device that has draws of its own; "meta" holds shapes alone and refuses to mix, as a GPU does."""

    def __init__(self, inner: Denoiser):
        super().__init__(inner)
        self.x = inner.x.to("meta")

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.zeros(n, self.observations, self.dim, device="meta")

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        return z / (1 + s**2)


def test_the_mixture_follows_the_base_to_its_device():
    change = make_change(PLAIN_PRIOR, TARGET, PLAIN.scales.theta, 0)
    method = PriorGuide(Problem(PLAIN, change), PriorGuideSettings(), copy.deepcopy(THREE))
    guided = method.guide(Elsewhere(PLAIN.condition(X)), generator())
    z = torch.zeros(5, 2, 2, device="meta")
    assert guided.mean(z, torch.ones((), device="meta")).device == z.device


def test_the_fitted_mixture_is_a_guide_near_q_and_not_away_from_it():
    """It is fitted at draws of q alone, as the paper has it: far from q its slope is not that of log r (Turin OOD)."""
    p = MultivariateNormal(torch.zeros(4), torch.eye(4))
    q = MultivariateNormal(torch.full((4,), 2.5), torch.diag(torch.tensor([0.25, 0.5, 0.65, 1.0])))
    change = make_change(p, q, Standardizer(torch.zeros(4), torch.ones(4)), 0)
    mixture = fit_mixture(change, PriorGuideSettings(steps=1_000, learning_rate=1e-2), seed=0)
    curvature = 1 / q.variance - 1
    for point, near in ((q.mean, True), (p.mean, False)):
        at = point.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(mixture(at, torch.full((4,), 0.1)), at)
        want = (q.mean / q.variance - curvature * point) / (1 + 0.1 * curvature)  # of r averaged over N(point, 0.1 I)
        off = float((slope - want).norm() / want.norm())
        assert off < 0.1 if near else off > 0.5
