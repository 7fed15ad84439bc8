"""A learned ratio, corrected by particles: a training cut short still gives the exact posterior."""

from __future__ import annotations

import pytest
import torch
from exact import exact_posterior, gaussian_posterior
from torch.distributions import MultivariateNormal

import reprior
from reprior.errors import InputError, RefusedError

PRIOR_SHIFT = MultivariateNormal(torch.tensor([0.8, -0.4]), torch.tensor([[0.5, 0.2], [0.2, 0.4]]))
X = torch.tensor([0.3, -0.5])
C = 0.3  # variance of x given theta
SHORT = reprior.RatioSettings(
    plug_in="off", on="base", observations=60, draws=32, training=reprior.Training(steps=60, batch=256, validation=0.2)
)


@pytest.fixture(scope="module")
def short():
    posterior, _ = gaussian_posterior(dim=2, c=C)
    return reprior.adapt(posterior, PRIOR_SHIFT, "nre", SHORT, seed=0)


def errors(theta):
    exact = exact_posterior(PRIOR_SHIFT, X, C)
    mean, sd = exact.mean, exact.stddev
    return (theta.mean(0) - mean).abs().div(sd).max(), (theta.std(0) / sd - 1).abs().max()


def test_particles_undo_what_a_short_training_got_wrong(short):
    plain = errors(short.sample(6_000, X, seed=1))
    theta, info = short.sample(6_000, X, seed=1, correct="smc", return_info=True)
    mean, sd = errors(theta)
    assert plain[0] > 0.15  # else there is nothing to correct
    assert mean < 0.06  # the standard error of a mean of 6,000 even draws is 0.013 sd, of the worst of two 0.03
    assert sd < 0.05
    assert "by the ratio of nre" in info.told[0]


def test_only_a_learned_ratio_can_guide_particles(short):
    transport = reprior.adapt(short.posterior, PRIOR_SHIFT, "transport")
    with pytest.raises(RefusedError, match="method 'transport' has no learned log ratio"):
        transport.sample(10, X, correct="smc")


def test_an_adapted_posterior_is_not_adapted_again(short):
    with pytest.raises(InputError, match="got an AdaptedPosterior: adapt its base"):
        reprior.adapt(short, PRIOR_SHIFT)
