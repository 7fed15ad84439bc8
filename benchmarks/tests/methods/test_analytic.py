"""Analytic guidance: exact under Gaussians and mixtures, whatever the units."""

from __future__ import annotations

import pytest
import torch
from exact import GaussianBase, gaussian_posterior
from torch.distributions import Categorical, Independent, Laplace, MixtureSameFamily, MultivariateNormal, Normal

import reprior
from reprior.errors import InputError
from reprior.methods import Problem
from reprior.methods.transport import Transported
from reprior.posterior import Posterior, Scales
from reprior.standardizer import Standardizer
from reprior.target import make_change
from reprior_bench.methods.analytic import Analytic, AnalyticSettings, gaussian_mean, mixture_of

C = 0.3
POSTERIOR, PRIOR = gaussian_posterior(dim=2, c=C, rho=0.4)
TARGET = MultivariateNormal(torch.tensor([0.5, -0.5]), torch.tensor([[0.5, 0.2], [0.2, 0.4]]))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_posterior_mean_of_a_mixture_equals_quadrature():
    prior = MixtureSameFamily(
        Categorical(torch.tensor([0.3, 0.7])),
        MultivariateNormal(torch.tensor([[-1.0], [1.5]]), torch.tensor([[[0.2]], [[0.5]]])),
    )
    theta = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    for data in (-2.0, 0.3, 1.0):
        log = prior.log_prob(theta.float().unsqueeze(-1)).double() - (theta - data) ** 2 * 1.7 / 2
        want = float((theta * torch.softmax(log, 0)).sum())
        got = gaussian_mean(prior, torch.tensor([data]).double(), torch.tensor([[1.7]]).double())
        assert float(got) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("s", [0.05, 0.6, 4.0])
def test_guided_mean_is_exact_for_a_gaussian_change(s):
    x = torch.tensor([[0.4, 0.2], [-1.0, 0.8]])
    change = make_change(PRIOR, TARGET, POSTERIOR.scales.theta, 0)
    base = POSTERIOR.condition(x)
    guided = Analytic(Problem(POSTERIOR, change), AnalyticSettings(C)).guide(base, generator())
    z = (1 + s) * torch.randn(40, 2, 2, generator=generator())
    want = Transported(base, change.quadratic).mean(z, torch.tensor(s))
    assert torch.allclose(guided.mean(z, torch.tensor(s)), want, atol=1e-4)


def test_user_units_are_respected():
    # The same problem written as theta = 3 + 2 u: samples must be the same up to that map.
    unit = Standardizer(torch.full((2,), 3.0), torch.full((2,), 2.0))
    cov = PRIOR.covariance_matrix
    prior = MultivariateNormal(torch.full((2,), 3.0), 4 * cov)
    target = MultivariateNormal(3 + 2 * TARGET.loc, 4 * TARGET.covariance_matrix)
    moved = Posterior(GaussianBase(cov, C), Scales(unit, unit), prior, None, ("a", "b"))
    x = torch.tensor([0.4, 0.2])
    plain = reprior.adapt(POSTERIOR, TARGET, "analytic", AnalyticSettings(C)).sample((50,), x=x, seed=1)
    other = reprior.adapt(moved, target, "analytic", AnalyticSettings(4 * C)).sample((50,), x=3 + 2 * x, seed=1)
    assert torch.allclose(other, 3 + 2 * plain, atol=1e-3)


def test_mixture_target_is_sampled_with_its_weights():
    means = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    target = MixtureSameFamily(Categorical(torch.tensor([0.7, 0.3])), MultivariateNormal(means, 0.1 * torch.eye(2)))
    adapted = reprior.adapt(POSTERIOR, target, "analytic", AnalyticSettings(C))
    x = torch.tensor([0.1, 0.0])
    theta = adapted.sample((4_000,), x=x, seed=0)
    evidence = MultivariateNormal(means, (0.1 + C) * torch.eye(2)).log_prob(x)
    weight = float(torch.softmax(torch.tensor([0.7, 0.3]).log() + evidence, 0)[0])
    # Standard error sqrt(.2 / 4000) = 0.007; 32 steps of the sampler move a draw between the modes now and then.
    assert float((theta.sum(1) > 0).float().mean()) == pytest.approx(weight, abs=0.035)


def test_components_are_read_in_any_form():
    plain = mixture_of(Independent(Normal(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 2.0])), 1))
    assert torch.allclose(plain[2][0], torch.diag(torch.tensor([0.25, 4.0])).double())
    log_w, means, covs = mixture_of(
        MixtureSameFamily(
            Categorical(torch.tensor([1.0, 3.0])), MultivariateNormal(torch.eye(2), torch.eye(2).expand(2, 2, 2))
        )
    )
    assert torch.allclose(log_w.exp(), torch.tensor([0.25, 0.75]).double())
    assert means.shape == (2, 2)
    assert covs.shape == (2, 2, 2)


def test_what_it_cannot_do_is_refused():
    scale = POSTERIOR.scales.theta
    laplace = Independent(Laplace(torch.zeros(2), torch.ones(2)), 1)
    with pytest.raises(InputError, match="needs Gaussian or Gaussian-mixture priors; got Independent"):
        Analytic(Problem(POSTERIOR, make_change(PRIOR, laplace, scale, 0)))
    with pytest.raises(InputError, match="needs the target prior as a distribution"):
        Analytic(Problem(POSTERIOR, make_change(PRIOR, TARGET.log_prob, scale, 0)))
    odd = gaussian_posterior(dim=2, c=C)[0]
    odd.base.x_dim = 3
    with pytest.raises(InputError, match="x and theta must have the same size"):
        Analytic(Problem(odd, make_change(PRIOR, TARGET, scale, 0)))
    with pytest.raises(InputError, match="variance must be positive; got 0"):
        AnalyticSettings(0.0)
