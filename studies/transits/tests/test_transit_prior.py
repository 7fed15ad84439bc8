from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from reprior import priors
from reprior.errors import InputError
from reprior_transits.transit_prior import (
    MEAN,
    STD,
    TransitPrior,
    fold_inclination,
    gaussian_prior,
    impact_parameter,
    physical,
)


def test_the_reference_prior_is_the_table_of_the_paper():
    prior = gaussian_prior()
    assert prior.mean.tolist() == pytest.approx(MEAN)
    assert prior.stddev.tolist() == pytest.approx(STD)
    assert priors.to_dict(prior) is not None  # it can be saved with a posterior


@pytest.mark.parametrize("mirrored", [False, True])
def test_draws_are_physical_and_the_density_integrates_to_one(mirrored):
    prior = TransitPrior(mirrored)
    theta = priors.sample(prior, 100_000, seed=0)
    assert physical(theta).all()
    assert prior.support.check(theta).all()
    assert bool((theta[:, 2] > 90).any()) == mirrored
    # E_g[p / g] = 1 under the Gaussian g; the weights are bounded by 2.02; 5 standard errors.
    draws = priors.sample(gaussian_prior(), 100_000, seed=1).double()
    g = torch.distributions.Normal(torch.tensor(MEAN).double(), torch.tensor(STD).double()).log_prob(draws).sum(-1)
    weight = (prior.log_prob(draws) - g).exp()
    assert float(weight.mean()) == pytest.approx(1.0, abs=5 * float(weight.std()) / np.sqrt(100_000))
    # For the truncated part alone the mass is exact: P(physical) from the normal tails and the triangle.
    if mirrored:
        mass = stats.norm.sf(-2.5) * stats.norm.sf(-3) * stats.norm.sf(-4.5) * stats.norm.sf(-1 / 0.3)
        assert float((-weight[weight > 0].log()).exp().mean()) == pytest.approx(mass, abs=2e-5)


@pytest.mark.parametrize("mirrored", [False, True])
def test_mean_and_variance_agree_with_draws(mirrored):
    prior = TransitPrior(mirrored)
    theta = priors.sample(prior, 200_000, seed=2).double()
    error = theta.std(0) / np.sqrt(200_000)
    assert ((theta.mean(0) - prior.mean).abs() < 5 * error).all()
    # The relative error of a variance is sqrt((kurtosis - 1) / n), at most sqrt(3 / n) here.
    assert ((theta.var(0) / prior.variance - 1).abs() < 5 * np.sqrt(3 / 200_000)).all()


def test_the_folded_inclination_has_the_folded_density():
    prior = TransitPrior()
    inc = priors.sample(prior, 20_000, seed=3)[:, 2].double().numpy()

    def cdf(value):
        return stats.norm.cdf(value, 87.5, 2) + stats.norm.sf(180 - value, 87.5, 2)

    assert stats.kstest(inc, cdf).pvalue > 1e-3
    theta = torch.tensor([MEAN, MEAN], dtype=torch.float64)
    theta[0, 2], theta[1, 2] = 89.0, 86.0
    ratio = (prior.log_prob(theta)[0] - prior.log_prob(theta)[1]).exp()

    def folded(value):
        return stats.norm.pdf(value, 87.5, 2) + stats.norm.pdf(180 - value, 87.5, 2)

    assert float(ratio) == pytest.approx(folded(89.0) / folded(86.0), rel=1e-9)


def test_inside_the_limits_the_mirrored_prior_is_the_gaussian_up_to_a_constant():
    theta = priors.sample(TransitPrior(mirrored=True), 1_000, seed=4).double()
    gaussian = torch.distributions.Normal(torch.tensor(MEAN).double(), torch.tensor(STD).double())
    difference = TransitPrior(mirrored=True).log_prob(theta) - gaussian.log_prob(theta).sum(-1)
    torch.testing.assert_close(difference, difference[:1].expand(1_000), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, 0.0),
        (0, -0.01),
        (0, 1.0),
        (1, 1.0),
        (2, 180.0),
        (3, 0.0),
        (5, -0.01),
        (5, 0.9),
        (6, -0.2),
        (7, 0.0),
        (7, np.nan),
    ],
)
def test_each_limit_has_zero_density(index, value):
    theta = torch.tensor([MEAN])
    theta[0, index] = value
    assert not physical(theta).any()
    for prior in (TransitPrior(), TransitPrior(mirrored=True)):
        assert float(prior.log_prob(theta)) == -np.inf
        assert float(priors.log_prob(prior, theta)) == -np.inf


def test_only_the_folded_prior_excludes_inclinations_above_90_degrees():
    theta = torch.tensor([MEAN])
    theta[0, 2] = 91.0
    assert physical(theta).all()
    assert float(TransitPrior().log_prob(theta)) == -np.inf
    assert torch.isfinite(TransitPrior(mirrored=True).log_prob(theta)).all()
    folded = fold_inclination(theta)
    assert float(folded[0, 2]) == 89.0
    assert float(theta[0, 2]) == 91.0  # the input is left alone
    torch.testing.assert_close(impact_parameter(folded), impact_parameter(theta))


def test_the_shares_that_the_docs_state():
    theta = priors.sample(gaussian_prior(), 400_000, seed=5)
    # Standard errors: 0.00012, 0.00006, 0.00003, 0.0005.
    assert float((theta[:, 0] <= 0).double().mean()) == pytest.approx(0.0062, abs=6e-4)
    assert float((theta[:, 1] <= 1).double().mean()) == pytest.approx(0.0013, abs=3e-4)
    assert float((theta[:, 7] <= 0).double().mean()) == pytest.approx(0.0004, abs=1.5e-4)
    assert float((theta[:, 2] > 90).double().mean()) == pytest.approx(0.106, abs=3e-3)


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match=r"theta must have shape \(\*, 8\) for k, a, inc"):
        physical(torch.zeros(3, 7))
