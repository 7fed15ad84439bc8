"""The MLP base: exact without training on a linear-Gaussian problem; broadcasting, embeddings, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from reprior.errors import FileFormatError, InputError
from reprior.networks.build import build, default_settings, rebuild
from reprior.networks.embedding import Embedding, build_embedding
from reprior.networks.mlp import MLPBase, MLPSettings
from reprior.networks.noise import NoiseLaw
from reprior.networks.simformer import SimformerSettings

KINDS = ["scalar", "diagonal", "full"]
# theta_i ~ N(0, 1), x_i = theta_i + N(0, c_i): theta | x ~ N(x_i / (1 + c_i), c_i / (1 + c_i)), independent.
C = torch.tensor([0.02, 0.5, 4.0], dtype=torch.float64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(noise: str = "diagonal", **others) -> MLPSettings:
    embedding = Embedding(width=16, features=8)
    return MLPSettings(noise=noise, width=24, blocks=2, embedding=embedding, guess="linear", **others)  # pyright: ignore[reportArgumentType]


def linear_gaussian(n: int = 40_000) -> tuple[Tensor, Tensor]:
    """Pairs whose empirical means and covariances are exactly the model's, so that a regression is exact."""
    raw = torch.randn(n, 6, generator=generator(3), dtype=torch.float64)
    raw = raw - raw.mean(0)
    white = raw @ torch.linalg.inv(torch.linalg.cholesky(raw.T @ raw / n)).T
    theta, noise = white[:, :3], white[:, 3:]
    return theta.float(), (theta + C.sqrt() * noise).float()


def prepared(noise: str) -> MLPBase:
    torch.manual_seed(0)
    base = MLPBase(3, 3, small(noise))
    base.prepare(*linear_gaussian())
    return base.requires_grad_(False).eval()


def random_weights(base: MLPBase, seed: int = 1) -> MLPBase:
    """No zero-initialised layer is left, so that every path matters."""
    for p in base.parameters():
        p.data = 0.3 * torch.randn(p.shape, generator=generator(seed))
    return base.requires_grad_(False).eval()


def exact_mean(z: Tensor, x: Tensor, cov: Tensor) -> Tensor:
    """E[theta_0 | z = theta_0 + N(0, cov), x] = m + V (V + cov)^-1 (z - m), m and V those of theta_0 | x."""
    m, v = x.double() / (1 + C), torch.diag(C / (1 + C))
    gain = v @ torch.linalg.inv(v + cov.double())
    return m + torch.einsum("...ij,...j->...i", gain, z.double() - m)


# --- nothing to learn on a linear-Gaussian problem ----------------------------------------------------------

# The width has its own standard error on top, a share 1 / sqrt(2 n) = 0.0035; the penalty changes less.
CLOSE = 6e-3


@pytest.mark.parametrize("kind", KINDS)
def test_untrained_network_is_the_exact_denoiser_for_one_level(kind):
    base = prepared(kind)
    x = torch.randn(4, 3, generator=generator(1))
    for s in (0.01, 0.3, 2.0, 40.0):
        z = x / (1 + C.float()) + (1 + s) * torch.randn(5, 4, 3, generator=generator(2))
        denoiser = base.condition(x)
        error = denoiser.mean(z, torch.tensor(s)) - exact_mean(z, x, s**2 * torch.eye(3))
        assert float(error.abs().max()) < CLOSE * (1 + s)
        score = denoiser.score(z, torch.tensor(s))
        exact = (exact_mean(z, x, s**2 * torch.eye(3)) - z) / s**2
        assert float((score - exact).abs().max()) < CLOSE * (1 + s) / s**2


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_untrained_network_is_exact_for_one_level_per_parameter(kind):
    base = prepared(kind)
    x, z = torch.randn(4, 3, generator=generator(1)), torch.randn(5, 4, 3, generator=generator(2))
    levels = torch.tensor([0.05, 1.0, 7.0])
    error = base.condition(x).mean(z, levels) - exact_mean(z, x, torch.diag(levels**2))
    assert float(error.abs().max()) < CLOSE


def test_untrained_network_is_exact_for_a_covariance():
    base = prepared("full")
    x, z = torch.randn(4, 3, generator=generator(1)), torch.randn(5, 4, 3, generator=generator(2))
    cov = torch.tensor([[0.5, 0.3, -0.2], [0.3, 0.4, 0.0], [-0.2, 0.0, 2.0]])
    error = base.condition(x).mean_full(z, cov) - exact_mean(z, x, cov)
    assert float(error.abs().max()) < CLOSE


@pytest.mark.parametrize("kind", KINDS)
def test_untrained_loss_is_that_of_the_exact_denoiser(kind):
    # In units of what is left open the target has unit variance and nothing predicts it: a loss of 1. Over the
    # 20,000 rows the standard error is at most sqrt(2 / 20,000) = 0.01 (each row averages three squares).
    base = prepared(kind)
    theta, x = linear_gaussian(20_000)
    assert float(base.loss(theta, x, generator(5)).mean()) == pytest.approx(1, abs=0.04)


def test_guess_extrapolates_along_the_line():
    base = prepared("scalar")
    x = torch.tensor([[20.0, -20.0, 20.0]])
    assert torch.allclose(base.guess(x)[0], (x / (1 + C)).float(), rtol=2e-3)


def test_a_parameter_that_x_determines_keeps_a_width():
    torch.manual_seed(0)
    base = MLPBase(1, 1, small())
    theta = torch.randn(200, 1, generator=generator())
    base.prepare(theta, theta)
    assert 1e-3 <= float(base.guess.spread) < 2e-3


# --- shapes and broadcasting --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_many_observations_equal_one_by_one(kind):
    base = random_weights(prepared(kind))
    x, z = torch.randn(3, 3, generator=generator(1)), torch.randn(6, 3, 3, generator=generator(2))
    s = torch.tensor(0.4)
    together = base.condition(x)
    assert together.observations == 3
    out = together.mean(z, s)
    assert out.shape == z.shape
    for k in range(3):
        alone = base.condition(x[k : k + 1])
        assert torch.allclose(alone.mean(z[:, k : k + 1], s)[:, 0], out[:, k], atol=1e-5)
        assert torch.allclose(together.select(k).mean(z[:, k : k + 1], s)[:, 0], out[:, k], atol=1e-5)
        # Without the axis of observations, for one observation.
        assert torch.allclose(alone.mean(z[:, k], s), out[:, k], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_per_row_equals_row_by_row(kind):
    base = random_weights(prepared(kind))
    x, z = torch.randn(2, 3, generator=generator(1)), torch.randn(4, 2, 3, generator=generator(2))
    s = torch.tensor([0.01, 0.3, 2.0, 30.0]).reshape(4, 1, 1)
    denoiser = base.condition(x)
    rows = torch.stack([denoiser.mean(z[i], s[i, 0, 0]) for i in range(4)])
    assert torch.allclose(denoiser.mean(z, s), rows, atol=1e-4)


def test_every_description_of_the_same_noise_agrees():
    base = random_weights(prepared("full"))
    denoiser = base.condition(torch.randn(2, 3, generator=generator(1)))
    z = torch.randn(4, 2, 3, generator=generator(2))
    by_level = denoiser.mean(z, torch.tensor(0.4))
    assert torch.allclose(denoiser.mean(z, torch.full((3,), 0.4)), by_level, atol=1e-5)
    assert torch.allclose(denoiser.mean_full(z, 0.16 * torch.eye(3)), by_level, atol=1e-4)
    levels = torch.tensor([0.1, 0.4, 2.0])
    assert torch.allclose(denoiser.mean_full(z, torch.diag(levels**2)), denoiser.mean(z, levels), atol=1e-4)


def test_denoised_mean_can_be_differentiated():
    base = random_weights(prepared("diagonal"))
    denoiser = base.condition(torch.zeros(1, 3))
    z = torch.randn(1, 1, 3, generator=generator(2)).requires_grad_(True)
    (gradient,) = torch.autograd.grad(denoiser.mean(z, torch.tensor(0.5)).sum(), z)
    step = 1e-2 * torch.eye(3).unsqueeze(1)
    with torch.no_grad():
        change = denoiser.mean(z + step, torch.tensor(0.5)) - denoiser.mean(z - step, torch.tensor(0.5))
    assert torch.allclose(gradient[0, 0], change.sum(-1)[:, 0] / 2e-2, atol=1e-3)


# --- refusals -----------------------------------------------------------------------------------------------


def test_missing_entries_are_refused():
    with pytest.raises(InputError, match="missing entries"):
        prepared("scalar").condition(torch.tensor([[0.0, math.nan, 0.0]]))


def test_prediction_is_refused():
    with pytest.raises(InputError, match="cannot predict x"):
        prepared("scalar").condition(torch.zeros(1, 3), predict=True)


def test_noise_it_was_not_trained_with_is_refused():
    z = torch.zeros(1, 1, 3)
    scalar, diagonal = (prepared(kind).condition(torch.zeros(1, 3)) for kind in ("scalar", "diagonal"))
    with pytest.raises(InputError, match="one level per parameter needs 'diagonal'"):
        scalar.mean(z, torch.ones(3))
    for denoiser in (scalar, diagonal):
        with pytest.raises(InputError, match="a covariance needs noise='full'"):
            denoiser.mean_full(z, torch.eye(3))
        with pytest.raises(InputError, match="does not broadcast"):
            denoiser.mean(z, torch.ones(2))


def test_settings_are_checked():
    with pytest.raises(InputError, match="width and blocks of at least 1; got 0 and 3"):
        MLPSettings(width=0)
    with pytest.raises(InputError, match="noise 'white' is unknown"):
        MLPSettings(noise="white")  # pyright: ignore[reportArgumentType]
    assert MLPSettings(noise="full", law=NoiseLaw(kind="scalar")).law.kind == "full"


# --- embeddings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "dense", "convolution", "set", "peak"])
def test_every_embedding_has_its_size(kind):
    settings = Embedding(kind=kind, width=8, layers=2, features=5)
    out = build_embedding(settings, 9)(torch.randn(4, 9, generator=generator()))
    assert out.shape == (4, 9 if kind == "none" else 5)
    base = MLPBase(2, 9, MLPSettings(width=8, blocks=1, embedding=settings))
    assert base.condition(torch.zeros(4, 9)).mean(torch.zeros(3, 4, 2), torch.tensor(1.0)).shape == (3, 4, 2)


def test_embeddings_are_checked():
    with pytest.raises(InputError, match="embedding kind 'lstm' is unknown"):
        Embedding(kind="lstm")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="at least 1"):
        Embedding(features=0)
    with pytest.raises(InputError, match="at least 4 points; got 3"):
        build_embedding(Embedding(kind="convolution", layers=2), 3)
    with pytest.raises(InputError, match="x of 10 entries is not 2 series of patches of 4 and 0 more"):
        build_embedding(Embedding(kind="patches", item=4, channels=2), 10)
    with pytest.raises(InputError, match="channels and extra go with kind='patches'; got 2 and 0 with kind='dense'"):
        Embedding(channels=2)


def test_patches_see_both_series_of_a_stretch_and_its_neighbours():
    net = build_embedding(Embedding(kind="patches", width=6, layers=1, features=5, item=4, channels=2), 32)
    x = torch.randn(3, 32, generator=generator())
    assert net(x).shape == (3, 5)
    assert net(x.unsqueeze(0)).shape == (1, 3, 5)
    # What one patch gives depends on its four points and two on either side, in both series, and on nothing else.
    x.requires_grad_(True)
    hidden: list[Tensor] = []
    net.each.register_forward_hook(lambda *args: hidden.append(args[-1]))  # pyright: ignore
    net(x)
    (slope,) = torch.autograd.grad(hidden[0][0, 1].sum(), x)
    assert slope[0].nonzero()[:, 0].tolist() == [*range(2, 10), *range(18, 26)]
    more = build_embedding(Embedding(kind="patches", width=6, features=5, item=4, channels=2, extra=3), 35)
    assert more(torch.randn(3, 35, generator=generator())).shape == (3, 5)


class Moments(nn.Module):
    """A user's embedding: the mean and the spread of a series, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.stack([x.mean(-1), x.std(-1)], -1)


def test_own_embedding_is_used_and_trained():
    base = MLPBase(2, 6, small(), embedding=Moments())
    nn.init.normal_(base.out.weight)
    x = torch.randn(3, 6, generator=generator())
    # All that the network sees of x is its embedding: another order of the series changes nothing.
    assert torch.allclose(base.encode(x), base.encode(x.flip(-1)), atol=1e-5)
    assert torch.allclose(base.features(x), Moments()(x))
    base.loss(torch.randn(3, 2, generator=generator(1)), x, generator(2)).mean().backward()
    assert isinstance(base.embedding, Moments)
    assert base.embedding.scale.grad is not None
    assert float(base.embedding.scale.grad.abs().max()) > 0


# --- rebuilding ---------------------------------------------------------------------------------------------


def test_rebuilt_from_its_configuration():
    base = random_weights(prepared("full"))
    again = rebuild(base.config())
    assert isinstance(again, MLPBase)
    assert again.settings == base.settings
    again.load_state_dict(base.state_dict())
    x, z = torch.randn(2, 3, generator=generator(1)), torch.randn(4, 2, 3, generator=generator(2))
    s = torch.tensor(0.4)
    assert torch.equal(again.condition(x).mean(z, s), base.condition(x).mean(z, s))


def test_rebuilding_with_an_own_embedding_needs_it():
    config = MLPBase(2, 6, small(), embedding=Moments()).config()
    with pytest.raises(InputError, match=r"load\(path, embedding=module\)"):
        rebuild(config)
    again = rebuild(config, Moments())
    assert isinstance(again, MLPBase)
    assert again.own_embedding


def test_networks_by_name():
    assert isinstance(default_settings("mlp"), MLPSettings)
    assert isinstance(default_settings("simformer"), SimformerSettings)
    with pytest.raises(InputError, match="network 'flow' is unknown; allowed: mlp, simformer"):
        default_settings("flow")
    with pytest.raises(InputError, match="MLPSettings or SimformerSettings; got dict"):
        build(2, 2, {})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="goes with network='mlp'"):
        build(2, 2, SimformerSettings(), embedding=Moments())
    with pytest.raises(FileFormatError, match="network 'flow'"):
        rebuild({"network": "flow", "settings": {}})
