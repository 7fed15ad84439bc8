"""Nuisance parameters under a bounded prior: the integral over them, and the check of the fits.

theta = (a, nu) with a ~ N(0, 1) and nu ~ U(0, 5); p(theta | x) is the exact Gaussian of the base, cut at nu = 0.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from exact import exact_posterior, gaussian_posterior
from torch.distributions import HalfCauchy, Normal, Uniform

from reprior import priors
from reprior.info import Info
from reprior.sequential.checks import check_update
from reprior.sequential.terms import Term, Terms

BASE, GAUSS = gaussian_posterior(dim=2, c=1.0, rho=0.7)
BOUNDED = replace(
    BASE, prior=priors.as_prior([Normal(torch.zeros(1), torch.ones(1)), Uniform(torch.zeros(1), torch.full((1,), 5.0))])
)
X = torch.zeros(2)
EXACT = exact_posterior(GAUSS, X, 1.0)


def term_of(sharper: float = 1.0, nu: float = 0.0) -> Term:
    """The term of X from exact values inside the bounds, or wrong ones: times ``sharper``, with nu around another value."""
    points = priors.sample(EXACT, 1_500, 0)
    points = points[points[:, 1] > 0]
    mean = EXACT.mean.double() + torch.tensor([0.0, nu]).double()
    values = sharper * EXACT.log_prob(points).double()
    return Term(X, mean, EXACT.covariance_matrix.double(), points.double(), values)


def terms_of(*terms: Term) -> Terms:
    return Terms(BOUNDED, (1,), points=200, checks=60, terms=terms)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_integral_over_nu_stays_inside_the_support():
    a, found = terms_of(term_of())._carried(term_of(), generator())
    mean, cov = EXACT.mean, EXACT.covariance_matrix
    gap = a[:, 0].float() - mean[0]
    centre, sd = mean[1] + cov[0, 1] / cov[0, 0] * gap, (cov[1, 1] - cov[0, 1] ** 2 / cov[0, 0]).sqrt()
    inside = torch.log(Normal(0.0, 1.0).cdf(centre / sd))  # the mass of nu above 0, given a; 5 is out of reach
    exact = (
        Normal(mean[0], cov[0, 0].sqrt()).log_prob(a[:, 0].float())
        + inside
        - Normal(0.0, 1.0).log_prob(a[:, 0].float())
    )
    bulk = gap.abs() < 2 * cov[0, 0].sqrt()
    # 64 nodes, a sixth to all of them inside: one more or less is up to a tenth. Without the bounds it is the spread of
    # log(mass), three times that.
    assert float((found - exact)[bulk].std()) < 0.1
    assert float(inside[bulk].std()) > 0.3


def test_a_wrong_term_is_seen_although_some_nuisance_draws_leave_the_support():
    samples = term_of().points.float()
    assert terms_of(term_of(), term_of()).check(samples, generator()).ess > 0.9
    assert terms_of(term_of(sharper=4.0), term_of()).check(samples, generator()).ess < 0.8


def test_what_could_not_be_compared_is_not_trusted():
    found = terms_of(term_of(nu=-50.0), term_of()).check(term_of().points.float(), generator())
    assert found.ess == 0
    log_w = torch.zeros(1_000, 1)
    info = Info("rejuvenate", 10, 1, 0.0, figures={"agreement": (found.ess,)}, _log_w=lambda: log_w)
    (fit,) = (one for one in check_update(info, learned=False) if one.name == "fit")
    assert fit.outcome == "stop"
    assert fit.reason.endswith("It could not be compared with the exact one.")


def test_a_heavy_tailed_nuisance_prior_does_not_tilt_the_carried_one():
    prior = priors.as_prior([Normal(torch.zeros(1), torch.ones(1)), HalfCauchy(torch.ones(1))])
    terms = Terms(replace(BASE, prior=prior), (1,), points=200, checks=60)
    a = torch.linspace(-2, 2, 9, dtype=torch.float64).unsqueeze(1)
    gap = terms.nuisance.log_prior(a) - Normal(0.0, 1.0).log_prob(
        BASE.scales.theta.inverse(a.float().expand(-1, 2))[:, 0]
    )
    assert float(gap.std()) < 1e-5
