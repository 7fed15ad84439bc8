"""Weighted score matching approaches the closed-form denoised mean of the target."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal

from reprior.change import make_change
from reprior.diffusion.sampler import Sampler
from reprior.networks.fit import Training
from reprior.errors import InputError
from reprior.methods.learned.guidance import RatioSettings
from reprior.methods.transport import TransportGuidance
from reprior_bench.methods.wsm import WeightedScoreGuidance, learn_correction
from reprior.networks.ratio import RatioMLP, RatioNetworkSettings
from reprior.methods.learned.training import make_pool

POSTERIOR, PRIOR = gaussian_posterior(dim=1, c=0.5, n=2_000)
TARGET = MultivariateNormal(torch.tensor([1.0]), torch.tensor([[0.6]]))
CHANGE = make_change(PRIOR, TARGET, POSTERIOR.scales.theta, seed=0)
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
def pool():
    return make_pool(POSTERIOR, CHANGE, SETTINGS, seed=0, observed=None)


@pytest.fixture(scope="module")
def learned(pool) -> WeightedScoreGuidance:
    return learn_correction(POSTERIOR, CHANGE, SETTINGS, 0, progress=False, pool=pool)


@pytest.mark.parametrize(("level", "bound"), [(0.1, 0.35), (0.5, 0.25), (2.0, 0.15)])
def test_corrected_mean_approaches_the_closed_form(learned, level, bound):
    assert POSTERIOR.simulations is not None
    x = POSTERIOR.simulations.x[:40]
    base, s = POSTERIOR.condition(x), torch.tensor(level)
    theta = POSTERIOR.base.posterior_mean(x).float() + 0.577 * torch.randn(50, 40, 1, generator=generator(1))  # pyright: ignore
    z = theta + s * torch.randn(theta.shape, generator=generator(2))
    want = TransportGuidance(CHANGE, "full").guide(base, generator()).mean(z, s)
    error, size = learned.guide(base, generator()).mean(z, s) - want, want - base.mean(z, s)
    # No correction has error 1. Low noise is the hardest: there the target is theta_0 itself, known up to s.
    assert float(error.square().mean().sqrt() / size.square().mean().sqrt()) < bound


def test_optimum_of_the_loss_is_the_weighted_mean(pool):
    # At fixed (z, s, x) the loss is least where mean + c u = E_r[theta_0]: a network that starts at zero starts at the base.
    fresh = RatioMLP(1, 1, 1, SETTINGS.network).requires_grad_(False)
    guidance = WeightedScoreGuidance(fresh, POSTERIOR, SETTINGS)
    base, z, s = POSTERIOR.condition(torch.ones(1, 1)), torch.randn(9, 1, 1, generator=generator()), torch.tensor(0.4)
    assert torch.equal(guidance.guide(base, generator()).mean(z, s), base.mean(z, s))
    torch.nn.init.constant_(fresh.out.bias, 0.3)
    shift = guidance.guide(base, generator()).mean(z, s) - base.mean(z, s)
    assert torch.allclose(shift, torch.full_like(shift, 0.3 * 0.4 / (1 + 0.16) ** 0.5), atol=1e-6)


def test_what_it_says_and_what_it_needs(learned, pool):
    assert learned.notes["training_ess"] == pool.ess
    assert learned.config()["dim"] == 1
    assert set(learned.tensors()) == set(learned.model.state_dict())
    with pytest.raises(InputError, match="needs the stored simulations"):
        learn_correction(replace(POSTERIOR, simulations=None), CHANGE, SETTINGS, 0, progress=False)


def test_joint_weights_work_too():
    joint = replace(SETTINGS, weights="joint", observations=10, draws=10, training=replace(SETTINGS.training, steps=3))
    guidance = learn_correction(POSTERIOR, CHANGE, joint, 0, progress=False)
    assert bool(
        torch.isfinite(
            guidance.guide(POSTERIOR.condition(torch.ones(1, 1)), generator()).mean(
                torch.zeros(3, 1, 1), torch.tensor(0.4)
            )
        ).all()
    )
