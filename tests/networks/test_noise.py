"""Noise of every kind: preconditioning against matrix formulas, what the network is told, the training law."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reprior.errors import InputError
from reprior.networks.noise import Noise, NoiseLaw, _random_frames, full_noise, noise_features


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_covariance(d: int, seed: int = 0) -> Tensor:
    a = torch.randn(d, d, generator=generator(seed), dtype=torch.float64)
    return a @ a.T / d + 0.05 * torch.eye(d, dtype=torch.float64)


def power(matrix: Tensor, p: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values**p) @ vectors.T


def check_formulas(noise: Noise, cov: Tensor) -> None:
    """c_in = (I + S)^-1/2, c_skip = (I + S)^-1, c_out = (S (I + S)^-1)^1/2 as matrices."""
    d = len(cov)
    eye = torch.eye(d, dtype=torch.float64)
    z = torch.randn(6, d, generator=generator(9), dtype=torch.float64)
    z_in, skip, out = noise.precondition(z)
    assert torch.allclose(z_in, z @ power(eye + cov, -0.5), atol=1e-10)
    assert torch.allclose(skip, z @ torch.linalg.inv(eye + cov), atol=1e-10)
    assert torch.allclose(noise.apply(out, z), z @ power(cov @ torch.linalg.inv(eye + cov), 0.5), atol=1e-8)
    assert torch.allclose(noise.apply(noise.levels, z), z @ power(cov, 0.5), atol=1e-10)
    assert torch.allclose(noise.apply(noise.levels**2, z), z @ cov, atol=1e-10)


def test_scalar_noise_equals_the_matrix_formulas():
    check_formulas(Noise(torch.tensor([0.7], dtype=torch.float64)), 0.49 * torch.eye(3, dtype=torch.float64))


def test_diagonal_noise_equals_the_matrix_formulas():
    levels = torch.tensor([0.1, 0.7, 3.0], dtype=torch.float64)
    check_formulas(Noise(levels), torch.diag(levels**2))


@pytest.mark.parametrize("d", [2, 5])
def test_full_noise_equals_the_matrix_formulas(d):
    cov = random_covariance(d)
    check_formulas(full_noise(cov), cov)


def test_batches_of_frames_act_row_by_row():
    covs = torch.stack([random_covariance(3, seed) for seed in range(4)])
    v = torch.randn(4, 3, generator=generator(), dtype=torch.float64)
    noise = full_noise(covs)
    out = noise.apply(noise.levels**2, v)
    assert torch.allclose(out, torch.einsum("nij,nj->ni", covs, v), atol=1e-10)


def test_preconditioning_gives_unit_variances():
    # For unit-variance theta, c_in z has unit variance, and so has the target c_out^-1 (theta - c_skip z).
    n = 40_000
    theta = torch.randn(n, 2, generator=generator(1))
    cov = torch.tensor([[0.5, 0.3], [0.3, 0.4]])
    noise = full_noise(cov)
    z = theta + noise.apply(noise.levels, torch.randn(n, 2, generator=generator(2)))
    z_in, skip, out = noise.precondition(z)
    target = noise.apply(1 / out, theta - skip)
    # Standard error of an entry of the covariance: at most sqrt(2 / n).
    for values in (z_in, target):
        assert torch.allclose(torch.cov(values.T), torch.eye(2), atol=4.5 * math.sqrt(2 / n))
    # And the target is uncorrelated with the input: nothing linear is left to learn.
    assert float((z_in.T @ target / n).abs().max()) < 4.5 / math.sqrt(n)


# --- what the network is told -------------------------------------------------------------------------------


def test_features_of_each_kind():
    levels = torch.tensor([[0.2, 2.0]])
    assert torch.allclose(noise_features(Noise(levels[:, :1]), "scalar", 2), levels[:, :1].log() / 2)
    assert torch.allclose(noise_features(Noise(levels), "diagonal", 2), levels.log() / 2)
    triangle = torch.tensor([[math.log(0.2) / 2, 0.0, math.log(2.0) / 2]])
    assert torch.allclose(noise_features(Noise(levels), "full", 2), triangle)


def test_one_level_tells_every_parameter_the_same():
    told = noise_features(Noise(torch.tensor([0.3])), "diagonal", 4)
    assert torch.allclose(told, torch.full((4,), math.log(0.3) / 2))


def test_full_features_of_isotropic_noise_equal_the_scalar():
    d, s = 4, 0.3
    noise = full_noise(s**2 * torch.eye(d, dtype=torch.float64))
    told = noise_features(noise, "full", d)
    i, j = torch.triu_indices(d, d)
    assert told.shape == (d * (d + 1) // 2,)
    assert torch.allclose(told[i == j], torch.full((d,), math.log(s) / 2, dtype=torch.float64))
    assert float(told[i != j].abs().max()) < 1e-12
    # An isotropic covariance in any frame is the same noise.
    frame = _random_frames(1, d, generator(3))[0].double()
    turned = noise_features(Noise(torch.full((d,), s, dtype=torch.float64), frame), "full", d)
    assert torch.allclose(turned, told, atol=1e-6)


def test_full_features_are_the_matrix_logarithm():
    cov = random_covariance(3)
    values, vectors = torch.linalg.eigh(cov)
    log_cov = vectors @ torch.diag(values.log()) @ vectors.T
    i, j = torch.triu_indices(3, 3)
    assert torch.allclose(noise_features(full_noise(cov), "full", 3), log_cov[i, j] / 4, atol=1e-10)


# --- the training law ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 3, 7])
def test_random_frames_are_orthogonal_and_mix_all_axes(d):
    frames = _random_frames(2_000, d, generator(4))
    eye = torch.eye(d).expand(2_000, d, d)
    assert torch.allclose(frames @ frames.mT, eye, atol=1e-5)
    # Each entry takes its share of a unit vector: no axis is left alone (uniform frames: 1/d in each entry).
    share = (frames**2).mean(0)
    assert float(share.min()) > 0.3 / d
    assert float(share.max()) < 3 / d


def test_scalar_law_draws_one_level_in_range():
    law = NoiseLaw(kind="scalar", log_std=4.0, s_min=0.01, s_max=5.0)
    width = torch.tensor([0.5, 2.0])
    noise, told = law.draw(width.expand(4_000, 2), generator(5))
    level = noise.levels * width
    assert torch.allclose(level[:, 0], level[:, 1])
    assert float(level.min()) == pytest.approx(0.01)
    assert float(level.max()) == pytest.approx(5.0)
    # Told in units of the typical width, which is 1 here.
    assert torch.allclose(told[:, 0], level[:, 0].log() / 2, atol=1e-6)


def test_scalar_law_is_log_normal_about_the_typical_width():
    law = NoiseLaw(kind="scalar", s_min=1e-9, s_max=1e9)
    width = torch.tensor([0.1, 0.4])  # geometric mean 0.2
    logs = (law.draw(width.expand(20_000, 2), generator(6))[0].levels * width)[:, 0].log()
    # Standard errors: 1.5 / sqrt(20,000) = 0.011 and 0.0075.
    assert float(logs.mean()) == pytest.approx(math.log(0.2) - 1.2, abs=0.045)
    assert float(logs.std()) == pytest.approx(1.5, abs=0.03)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_share_of_the_noise_is_isotropic(kind):
    width = torch.tensor([0.5, 1.0, 2.0])
    noise, told = NoiseLaw(kind=kind, isotropic=0.4).draw(width.expand(20_000, 3), generator(7))
    levels = noise.levels * width
    same = (levels / levels[:, :1] - 1).abs().max(-1).values < 1e-4
    # A binomial share: standard error sqrt(0.24 / 20,000) = 0.0035.
    assert float(same.float().mean()) == pytest.approx(0.4, abs=0.015)
    if kind == "full":
        assert noise.frame is not None
        eye = torch.eye(3).expand(int(same.sum()), 3, 3)
        assert torch.equal(noise.frame[same], eye)
        assert float((noise.frame[~same][:, 0, 0].abs() < 0.999).float().mean()) > 0.95
        assert told.shape == (20_000, 6)
    else:
        assert told.shape == (20_000, 3)


def test_draws_follow_the_generator():
    width = torch.ones(2)
    law = NoiseLaw(kind="full")
    one, two, other = (law.draw(width.expand(5, 2), generator(seed))[1] for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "white"}, "noise 'white' is unknown"),
        ({"s_min": 0.0}, "0 < s_min < s_max"),
        ({"s_min": 50.0}, "0 < s_min < s_max"),
        ({"log_std": 0.0}, "log_std > 0"),
        ({"isotropic": 1.2}, r"isotropic in \[0, 1\]"),
    ],
)
def test_the_law_is_checked(arguments, message):
    with pytest.raises(InputError, match=message):
        NoiseLaw(**arguments)
