"""The network of a learned guidance: what it sees, its shapes, and the zero it starts from."""

from __future__ import annotations

import math

import pytest
import torch

from reprior.diffusion.schedule import VP
from reprior.errors import InputError
from reprior.networks.ratio import RatioMLP, RatioNetworkSettings


def make(outputs: int = 1, **values) -> RatioMLP:
    torch.manual_seed(0)
    network = RatioMLP(2, 3, outputs, RatioNetworkSettings(width=16, layers=2, **values))
    torch.nn.init.normal_(network.out.weight)
    return network.requires_grad_(False)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_starts_at_no_guidance():
    network = RatioMLP(2, 3, 1, RatioNetworkSettings()).requires_grad_(False)
    assert float(network(normal(7, 4, 2), torch.tensor(0.3), network.encode(normal(4, 3))).abs().max()) == 0


@pytest.mark.parametrize("time", ["log", "fourier"])
def test_noise_of_any_shape_and_one_observation_at_a_time_agree(time):
    network = make(time=time)
    z, code = normal(7, 4, 2), network.encode(normal(4, 3, seed=1))
    whole = network(z, torch.tensor(0.3), code)
    assert whole.shape == (7, 4, 1)
    assert torch.allclose(network(z, torch.tensor([0.3]), code), whole, atol=1e-6)
    assert torch.allclose(network(z, torch.full((7, 4, 1), 0.3), code), whole, atol=1e-6)
    assert torch.allclose(network(z[:, 2:3], torch.tensor(0.3), code[2:3]), whole[:, 2:3], atol=1e-6)
    assert make(outputs=2)(z, torch.tensor(0.3), code).shape == (7, 4, 2)


def test_sees_the_variance_preserving_state():
    # With the noise's own features cut, z and s matter only through z / sqrt(1 + s^2).
    network = make()
    torch.nn.init.zeros_(network.from_time.weight)
    z, code = normal(5, 1, 2), network.encode(normal(1, 3))
    theta_t = z / math.sqrt(1 + 4.0)
    moved = theta_t * math.sqrt(1 + 0.25)
    assert torch.allclose(network(z, torch.tensor(2.0), code), network(moved, torch.tensor(0.5), code), atol=1e-6)


def test_time_features():
    s = torch.tensor([[0.01], [0.5], [20.0]])
    log, fourier = make(time="log", time_features=6), make(time="fourier", time_features=6)
    assert log.time(s).shape == fourier.time(s).shape == (3, 6)
    angle = s.log() * torch.tensor([0.35, 0.7, 1.05])
    assert torch.allclose(log.time(s), torch.cat([angle.sin(), angle.cos()], -1))
    angle = 2 * math.pi * VP().t(s) * fourier.frequencies
    assert torch.allclose(fourier.time(s), torch.cat([angle.sin(), angle.cos()], -1))
    # Over the used range log features do not repeat: the slowest angle stays within one turn.
    assert 0.35 * (math.log(100) - math.log(1e-4)) < 2 * math.pi


def test_random_frequencies_are_saved_with_the_weights():
    one = make(time="fourier")
    torch.manual_seed(9)
    two = RatioMLP(2, 3, 1, one.settings)
    two.load_state_dict(one.state_dict())
    z, code = normal(5, 1, 2), one.encode(normal(1, 3))
    assert torch.equal(one(z, torch.tensor(0.4), code), two(z, torch.tensor(0.4), code))


@pytest.mark.parametrize("values", [{"width": 0}, {"layers": 0}, {"time_features": 3}, {"time_features": 0}])
def test_bad_sizes_are_refused(values):
    with pytest.raises(InputError, match="an even number of time features; got RatioNetworkSettings"):
        RatioNetworkSettings(**values)


def test_unknown_time_is_refused():
    with pytest.raises(InputError, match="time 'linear' is unknown; allowed: fourier, log"):
        RatioNetworkSettings(time="linear")  # pyright: ignore[reportArgumentType]


def test_bfloat16_is_for_training_steps_alone():
    low, full = make(precision="bfloat16"), make()
    z, s, features = normal(50, 1, 2), torch.tensor(0.3), normal(1, 3, seed=1)
    assert torch.equal(low(z, s, low.encode(features)), full(z, s, full.encode(features)))
    low.train()
    trained = low(z, s, low.encode(features))
    assert trained.dtype == torch.float32
    error = (trained - full(z, s, full.encode(features))).abs().max() / full(z, s, full.encode(features)).abs().max()
    assert 0 < error < 0.02  # eight binary digits, over one hidden product


def test_unknown_precision_is_refused():
    with pytest.raises(InputError, match="precision 'half' is unknown; allowed: float32, bfloat16"):
        RatioNetworkSettings(precision="half")  # pyright: ignore[reportArgumentType]
