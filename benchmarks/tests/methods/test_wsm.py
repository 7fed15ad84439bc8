"""Weighted score matching approaches the closed-form denoised mean of the target."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal

from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.methods import Problem, Transport
from reprior.methods.learned import RatioSettings
from reprior.methods.learned.training_set import make_training_set
from reprior.networks.fit import Training
from reprior.networks.ratio import RatioMLP, RatioNetworkSettings
from reprior.target import make_change
from reprior_bench.methods.wsm import WeightedScoreMatching, learn_correction

POSTERIOR, PRIOR = gaussian_posterior(dim=1, c=0.5, n=2_000)
TARGET = MultivariateNormal(torch.tensor([1.0]), torch.tensor([[0.6]]))
CHANGE = make_change(PRIOR, TARGET, POSTERIOR.scales.theta, seed=0)
PROBLEM = Problem(POSTERIOR, CHANGE)
SETTINGS = RatioSettings(
    observations=256,
    draws=128,
    network=RatioNetworkSettings(width=32, layers=2, time_features=4),
    training=Training(steps=400, batch=1_024, learning_rate=1e-2, ema=0.97, evaluate_every=100, validation=0.1),
    sampler=Sampler(),
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def learned() -> WeightedScoreMatching:
    return WeightedScoreMatching.build(PROBLEM, SETTINGS)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(("level", "bound"), [(0.1, 0.35), (0.5, 0.25), (2.0, 0.15)])
def test_corrected_mean_approaches_the_closed_form(learned, level, bound):
    assert POSTERIOR.simulations is not None
    x = POSTERIOR.simulations.x[:40]
    base, s = POSTERIOR.condition(x), torch.tensor(level)
    theta = POSTERIOR.base.posterior_mean(x).float() + 0.577 * torch.randn(50, 40, 1, generator=generator(1))  # pyright: ignore
    z = theta + s * torch.randn(theta.shape, generator=generator(2))
    want = Transport.build(PROBLEM).guide(base, generator()).mean(z, s)
    error, size = learned.guide(base, generator()).mean(z, s) - want, want - base.mean(z, s)
    # No correction has error 1. Low noise is the hardest: there the target is theta_0 itself, known up to s.
    assert float(error.square().mean().sqrt() / size.square().mean().sqrt()) < bound


def test_a_correction_is_added_in_its_scale():
    # mean + c u with c = s / sqrt(1 + s^2): a network that starts at zero starts at the base.
    fresh = RatioMLP(1, 1, 1, SETTINGS.network).requires_grad_(False)
    method = WeightedScoreMatching(PROBLEM, SETTINGS, fresh, {"observed": None})
    base, z, s = POSTERIOR.condition(torch.ones(1, 1)), torch.randn(9, 1, 1, generator=generator()), torch.tensor(0.4)
    assert torch.equal(method.guide(base, generator()).mean(z, s), base.mean(z, s))
    torch.nn.init.constant_(fresh.out.bias, 0.3)
    shift = method.guide(base, generator()).mean(z, s) - base.mean(z, s)
    assert torch.allclose(shift, torch.full_like(shift, 0.3 * 0.4 / (1 + 0.16) ** 0.5), atol=1e-6)


def test_a_file_holds_it(learned):
    assert learned.notes["training_ess"] == make_training_set(PROBLEM, SETTINGS, seed=0).ess
    again = WeightedScoreMatching.rebuild(PROBLEM, json.loads(json.dumps(learned.config())), learned.tensors())
    base, z, s = POSTERIOR.condition(torch.ones(1, 1)), torch.randn(9, 1, 1, generator=generator()), torch.tensor(0.4)
    assert again.settings == SETTINGS
    assert torch.equal(again.guide(base, generator()).mean(z, s), learned.guide(base, generator()).mean(z, s))


def test_it_needs_the_stored_simulations():
    with pytest.raises(InputError, match="needs the stored simulations"):
        WeightedScoreMatching.build(Problem(replace(POSTERIOR, simulations=None), CHANGE), SETTINGS)


def test_joint_weights_work_too():
    joint = replace(SETTINGS, weights="joint", observations=10, draws=10, training=replace(SETTINGS.training, steps=3))
    model, result = learn_correction(PROBLEM, joint, make_training_set(PROBLEM, joint, seed=0))
    assert result.steps == 3
    assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
