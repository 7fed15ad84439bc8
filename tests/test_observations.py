"""Stored observations where q puts them, and the simulations that can be used where entries of x are missing."""

from __future__ import annotations

import pytest
import torch
from exact import gaussian_posterior, problem_of
from torch.distributions import MultivariateNormal, Uniform

from reprior.errors import InputError
from reprior.observations import likely_x, tempered_weights, usable
from reprior.weights import relative_ess

POSTERIOR, _ = gaussian_posterior(dim=2, c=0.3, n=4_000)
SIMULATIONS = POSTERIOR.simulations
assert SIMULATIONS is not None


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_tempered_weights_are_the_ratio_where_it_is_even_enough():
    log_r = torch.randn(5_000, generator=generator())
    assert torch.allclose(tempered_weights(log_r, 200.0), torch.softmax(log_r, 0))


def test_tempered_weights_reach_the_asked_effective_number():
    log_r = 6 * torch.randn(5_000, generator=generator())
    assert relative_ess(log_r) * 5_000 < 50
    weights = tempered_weights(log_r, 200.0)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-5)
    # The largest power that keeps 200: the bisection ends within 2^-30 of it.
    assert float(1 / weights.double().square().sum()) == pytest.approx(200.0, rel=1e-3)


def test_weights_of_nothing_are_equal():
    assert torch.allclose(tempered_weights(torch.full((4,), -torch.inf), 2.0), torch.full((4,), 0.25))


def test_tempered_weights_never_give_mass_to_nothing():
    log_r = torch.cat([5 * torch.randn(300, generator=generator()), torch.full((700,), -torch.inf)])
    weights = tempered_weights(log_r, 200.0)
    assert float(weights[300:].sum()) == 0
    assert float(1 / weights.double().square().sum()) == pytest.approx(200.0, rel=1e-3)
    # More than there are: all that have mass count alike, to the smallest power, 0.001.
    assert torch.allclose(tempered_weights(log_r, 400.0)[:300], torch.full((300,), 1 / 300), rtol=0.05)


def test_likely_x_follows_the_marginal_of_q():
    target = MultivariateNormal(torch.tensor([0.8, -0.4]), 0.5 * torch.eye(2))
    x = likely_x(SIMULATIONS, problem_of(POSTERIOR, target).change, 4_000, generator())
    # x ~ N(m, (0.5 + 0.3) I); some 1,300 of the 4,000 stored pairs count: standard error 0.9 / sqrt(1300) = 0.025.
    assert torch.allclose(x.mean(0), target.mean, atol=0.1)
    assert torch.allclose(x.var(0), torch.full((2,), 0.8), rtol=0.15)


def test_likely_x_of_a_target_that_no_stored_pair_has_is_any_x():
    tiny = problem_of(POSTERIOR, Uniform(torch.full((2,), 3.9), torch.full((2,), 3.91))).change
    x = likely_x(SIMULATIONS, tiny, 1_000, generator())
    assert float(x.mean(0).abs().max()) < 4 * 1.3**0.5 / 1_000**0.5


def test_usable_simulations_have_what_is_asked_for():
    x = SIMULATIONS.x.clone()
    x[::2, 0], x[::4, 1] = torch.nan, torch.nan
    gappy = POSTERIOR.with_simulations(SIMULATIONS.theta, SIMULATIONS.x).simulations
    assert gappy is not None
    object.__setattr__(gappy, "x", x)  # the exact base takes no missing entries, so its simulations cannot be made so
    first = torch.tensor([True, False])
    assert usable(SIMULATIONS, first) is SIMULATIONS
    assert usable(gappy, None) is gappy
    assert len(usable(gappy, first)) == 2_000
    assert len(usable(gappy, ~first)) == 3_000
    assert len(usable(gappy, ~first, whole=True)) == 2_000
    x[1:, 0] = torch.nan
    with pytest.raises(InputError, match="0 of 4000 stored simulations have all entries of x that are needed here"):
        usable(gappy, first)
