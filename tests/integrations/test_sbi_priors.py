"""Priors as sbi users write them, as the prior of the posterior and as the target."""

from __future__ import annotations

import exact_sbi as exact
import pytest
import scipy.stats
import torch
from sbi.inference.posteriors.vector_field_posterior import VectorFieldPosterior
from sbi.utils import BoxUniform
from sbi.utils.user_input_checks import process_prior
from torch.distributions import Beta, Gamma, Independent, Normal, Uniform

import reprior

X = torch.tensor([0.3, 0.2])
BOX = BoxUniform(torch.tensor([-4.0, -6.0]), torch.tensor([6.0, 5.0]))


class Bare:
    """A user's own prior: no support, no event shape."""

    def sample(self, shape=()):
        return Normal(torch.tensor(exact.CENTRE), torch.tensor(exact.SPREAD)).sample(shape)

    def log_prob(self, theta):
        return Normal(torch.tensor(exact.CENTRE), torch.tensor(exact.SPREAD)).log_prob(theta).sum(-1)


class Scipy:
    """A scipy distribution as sbi takes it: inside a class of the user's, with numpy in and out."""

    inner = scipy.stats.multivariate_normal(mean=list(exact.CENTRE), cov=[1.5**2, 1.5**2])

    def sample(self, shape=()):
        return self.inner.rvs(size=tuple(shape)).reshape(*shape, 2)

    def log_prob(self, theta):
        return self.inner.logpdf(theta).reshape(len(theta))


def from_prior(prior, theta=None):
    """The exact posterior, held by sbi under another form of prior."""
    source = VectorFieldPosterior(exact.exact_sbi("ve").vector_field_estimator, prior)
    drawn, x = exact.simulations()
    return reprior.from_sbi(source, drawn if theta is None else theta, x)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "prior",
    [
        [Normal(torch.tensor([c]), torch.tensor([s])) for c, s in zip(exact.CENTRE, exact.SPREAD, strict=True)],
        Scipy(),
        Bare(),
        Independent(Normal(torch.tensor(exact.CENTRE).double(), torch.tensor(exact.SPREAD).double()), 1),
    ],
    ids=["list", "scipy", "bare", "float64"],
)
def test_training_priors(prior):
    posterior = from_prior(process_prior(prior)[0])
    target = Independent(Normal(torch.tensor([1.6, 0.0]), torch.tensor([0.7, 0.7])), 1)
    adapted = reprior.adapt(posterior, target, method="sir")
    theta = adapted.sample((2_000,), X, seed=0)
    precision = 1 / 0.7**2 + 1 / exact.C
    mean = (torch.tensor([1.6, 0.0]) / 0.7**2 + X / exact.C) / precision
    assert theta.dtype == torch.float32
    # ESS/N is about .4 of 20,000: four standard errors of 2,000 draws, in sd.
    assert float((theta.mean(0) - mean).abs().max()) * precision**0.5 < 0.1


@pytest.mark.parametrize(
    ("target", "method"),
    [
        (BoxUniform(torch.tensor([-0.5, -1.0]), torch.tensor([1.0, 0.6])), "sir"),
        (
            [Uniform(torch.tensor([-0.5]), torch.tensor([1.0])), Normal(torch.tensor([0.0]), torch.tensor([0.5]))],
            "auto",
        ),
        ([Gamma(torch.tensor([2.0]), torch.tensor([3.0])), Beta(torch.tensor([2.0]), torch.tensor([2.0]))], "auto"),
        (scipy.stats.multivariate_normal(mean=[0.5, 0.0], cov=[0.3, 0.2]), "sir"),
        (lambda theta: -theta.abs().sum(-1), "auto"),
    ],
    ids=["box", "list", "bounded list", "scipy", "callable"],
)
def test_targets(target, method):
    """Under a box prior the target's own support holds, and samples are where its density is."""
    posterior = from_prior(BOX, reprior.priors.sample(BOX, 2_000, seed=1))
    adapted = reprior.adapt(posterior, target, method=method, accept_outside=True)
    theta, info = adapted.sample((300,), X, seed=0, return_info=True)
    assert theta.shape == (300, 2)
    assert bool(torch.isfinite(adapted.log_r(theta)).all())
    assert bool(BOX.support.check(theta).all())
    assert info.why


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_plain_priors_are_kept_as_numbers():
    parts = [Normal(torch.tensor([c]), torch.tensor([1.5])) for c in exact.CENTRE]
    posterior = from_prior(process_prior(parts)[0])
    kept = reprior.priors.from_dict(reprior.priors.to_dict(posterior.prior))
    theta = exact.simulations()[0][:50]
    truth = exact.prior().log_prob(theta)
    torch.testing.assert_close(reprior.priors.log_prob(kept, theta), truth, rtol=0, atol=1e-5)
