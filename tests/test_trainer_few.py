"""Few simulations, wide x, and data in which there is little to learn: defaults that stay honest, and say so."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import HalfNormal, Independent, Normal

from reprior.loading import load
from reprior.networks.embedding import Embedding
from reprior.networks.ensemble import MLPEnsemble
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings
from reprior.networks.simformer import SimformerSettings
from reprior.networks.sizing import sized_mlps, sized_training
from reprior.trainer import train

PRIOR = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
TINY = MLPSettings(width=16, blocks=1, embedding=Embedding(width=8, layers=1, features=4))
SHORT = Training(steps=20, batch=64, evaluate_every=5, ema=0.9)
QUICK = Training(steps=200, batch=128, evaluate_every=100, ema=0.98)


def wide(n: int, m: int, seed: int, noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """theta ~ N(0, I), x = theta B' + N(0, m noise I) with B'B = m I: theta | x has variance noise / (1 + noise)."""
    directions = torch.linalg.qr(torch.randn(m, 2, generator=torch.Generator().manual_seed(9))).Q * m**0.5
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(n, 2, generator=generator)
    return theta, theta @ directions.T + (m * noise) ** 0.5 * torch.randn(n, m, generator=generator)


def coverage(posterior, m: int, n: int = 300) -> tuple[Tensor, Tensor]:
    """The share of fresh truths in central 90 % intervals, and the mean standard deviation, of each parameter."""
    truth, x = wide(n, m, seed=1_234)
    draws = posterior.sample_batched((300,), x, seed=0)
    low, high = draws.quantile(0.05, dim=0), draws.quantile(0.95, dim=0)
    return ((truth > low) & (truth < high)).float().mean(0), draws.std(0).mean(0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(200, 60), (150, 600)])
def test_intervals_hold_the_truth_where_simulations_are_few_for_the_entries_of_x(shape):
    n, m = shape
    theta, x = wide(n, m, seed=0)
    posterior = train(theta, x, PRIOR, training=QUICK, progress=False)
    assert isinstance(posterior.base, MLPEnsemble)
    held, sd = coverage(posterior, m)
    # 300 observations tell a share of 0.9 to 0.017, and n simulations tell the width to 5 to 6 %.
    assert ((held > 0.82) & (held < 0.97)).all(), held
    assert (sd > 0.95 * math.sqrt(0.2)).all(), sd  # the exact one; never narrower
    assert (sd < 0.9).all(), sd  # nor the prior


def test_x_that_tells_nothing_leaves_the_prior_and_is_warned_of():
    generator = torch.Generator().manual_seed(1)
    theta, x = torch.randn(150, 2, generator=generator), torch.randn(150, 400, generator=generator)
    with pytest.warns(UserWarning, match="x shows no information on theta.*150 simulations with 400 entries"):
        posterior, result = train(theta, x, PRIOR, training=QUICK, progress=False, return_fit=True)
    assert result.factor == 0
    draws = posterior.sample_batched((200,), torch.randn(50, 400, generator=generator), seed=0)
    assert torch.allclose(draws.std(0).mean(0), theta.std(0), rtol=0.1)
    assert float(draws.mean(0).std()) < 0.3  # nor do the means move


def test_a_network_that_overfits_is_not_used():
    theta, x = wide(150, 30, seed=0)
    bad = Training(steps=300, batch=128, learning_rate=0.02, ema=0.5, evaluate_every=300, validation=0.3)
    with pytest.warns(
        UserWarning, match="no network did clearly better .* so none is used, and the posterior is a Gaussian"
    ):
        posterior, result = train(
            theta, x, PRIOR, settings=MLPSettings(width=64), training=bad, progress=False, return_fit=True
        )
    assert result.factor == 0
    assert result.best_loss == pytest.approx(result.alone)
    held, _ = coverage(posterior, 30)
    assert ((held > 0.8) & (held < 0.98)).all()


def test_a_network_that_helps_is_used():
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(1_500, 2, generator=generator)
    x = theta.square() + 0.3 * torch.randn(1_500, 2, generator=generator)  # nothing that a line can tell
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, result = train(
            theta,
            x,
            PRIOR,
            settings=TINY,
            training=Training(steps=600, batch=256, ema=0.98),
            progress=False,
            return_fit=True,
        )
    assert result.factor > 0.9
    assert result.best_loss < 0.9 * result.alone


def test_a_simformer_is_never_worse_than_its_guess():
    theta, x = wide(120, 3, seed=0)
    settings = SimformerSettings(layers=1, width=16)
    bad = Training(steps=40, batch=64, learning_rate=0.5, schedule="constant", ema=0.0, evaluate_every=40)
    with pytest.warns(UserWarning, match="so none is used"):
        posterior, result = train(
            theta, x, PRIOR, network="simformer", settings=settings, training=bad, progress=False, return_fit=True
        )
    assert result.best_loss == result.alone
    held, _ = coverage(posterior, 3)
    assert ((held > 0.8) & (held < 0.98)).all()


def test_columns_of_x_that_never_vary_are_named():
    theta, x = wide(300, 12, seed=0)
    x[:, 3] = 5.0
    with pytest.warns(UserWarning, match="column 3 of x never vary"):
        train(theta, x, PRIOR, settings=TINY, training=SHORT, progress=False)
    x[:, 2:] = 1.0
    with pytest.warns(UserWarning, match="columns 2, 3, 4, 5, 6, 7, 8, 9 and 2 more of x never vary"):
        train(theta, x, PRIOR, settings=TINY, training=SHORT, progress=False)
    with pytest.warns(UserWarning, match="x is the same in every simulation"):
        posterior = train(theta, torch.ones(300, 12), PRIOR, settings=TINY, training=SHORT, progress=False)
    assert torch.isfinite(posterior.sample((5,), torch.ones(12), seed=0)).all()


def test_columns_of_x_with_heavy_tails_are_named():
    theta, x = wide(300, 4, seed=0)
    x[:, 1] = torch.tan(torch.pi * (torch.rand(300, generator=torch.Generator().manual_seed(1)) - 0.5))  # Cauchy
    with pytest.warns(UserWarning, match="column 1 of x have heavy tails"):
        train(theta, x, PRIOR, settings=TINY, training=SHORT, progress=False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_works_where_gradients_are_switched_off(mode):
    theta, x = wide(300, 4, seed=0)
    plain = train(theta, x, PRIOR, settings=TINY, training=SHORT, progress=False)
    with mode():
        inside = wide(300, 4, seed=0)  # made in this mode, too
        posterior = train(*inside, PRIOR, settings=TINY, training=SHORT, progress=False)
        draws = posterior.sample((5,), x[0], seed=0)
    assert torch.equal(draws, plain.sample((5,), x[0], seed=0))
    z = torch.zeros(1, 1, 2, requires_grad=True)
    posterior.condition(x[:1]).mean(z, torch.tensor(0.5)).sum().backward()  # guidance differentiates it
    assert z.grad is not None


def test_few_wide_simulations_with_double_precision_as_the_default():
    theta, x = wide(100, 150, seed=0)
    torch.set_default_dtype(torch.float64)
    try:
        posterior = train(theta.double(), x.double(), PRIOR, training=SHORT, progress=False)
        draws = posterior.sample((5,), x[0], seed=0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.isfinite(draws).all()
    assert all(p.dtype == torch.float32 for p in posterior.base.parameters())


def test_an_ensemble_is_written_and_read(tmp_path):
    theta, x = wide(100, 150, seed=0)
    posterior = train(theta, x, PRIOR, training=SHORT, progress=False)
    again = load(posterior.save(tmp_path / "posterior"))
    assert torch.equal(again.sample((20,), x[0], seed=5), posterior.sample((20,), x[0], seed=5))  # pyright: ignore


def test_the_defaults_follow_the_simulations():
    assert sized_mlps(50_000, 10) == (MLPSettings(),)
    assert sized_training(50_000) == Training()
    (few,) = sized_mlps(300, 5)
    assert (few.members > 1, few.axes) == (True, 0)
    summary, plain = sized_mlps(300, 100)  # held-out simulations choose
    assert 0 < summary.axes <= 100
    assert plain.axes == 0
    (wide_x,) = sized_mlps(300, 1_000)
    assert wide_x.axes > 0
    assert [s.axes for s in sized_mlps(300, 1_000, own_embedding=True)] == [0]


@pytest.mark.slow
def test_held_out_simulations_choose_what_the_network_reads():
    """theta is in the square of one entry of x among many that are larger: principal components do not show it."""
    generator = torch.Generator().manual_seed(1)
    theta, x = torch.randn(600, 2, generator=generator).abs(), torch.randn(600, 40, generator=generator)
    x[:, :6] *= 20
    prior = Independent(HalfNormal(torch.ones(2)), 1)
    x[:, 20:22] = theta.sqrt() * x[:, 20:22].sign() * 0.3
    posterior = train(theta, x, prior, training=replace(QUICK, steps=1_600), progress=False)
    assert posterior.base.config()["settings"]["axes"] == 0
    posterior = train(*wide(300, 100, seed=0), PRIOR, training=replace(QUICK, steps=400), progress=False)
    assert posterior.base.config()["settings"]["axes"] > 0
