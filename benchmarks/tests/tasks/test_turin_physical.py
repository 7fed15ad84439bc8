"""Turin at its physical scale: power-delay profile, fourth moment, information, and the absence of a reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from reprior import priors
from reprior.errors import InputError
from reprior_bench import tasks
from reprior_bench.tasks.turin_likelihood import amplitude
from reprior_bench.tasks.turin_physical import _powers

TASK = tasks.get("turin_physical")
N, B, DF = 101, 0.5e9, 5e6
LOW, HIGH = np.array([1e-9, 1e-9, 1e7, 1e-10]), np.array([1e-8, 1e-8, 5e9, 1e-9])


def powers(theta, n, seed):
    """|y_n|^2, with shape (n, 101), from data x = (10 log10 |y|^2 + 140) / 60."""
    x = TASK.simulate(torch.tensor([theta]).expand(n, 4), seed).double().numpy()
    return 10 ** ((60 * x - 140) / 10)


def profile(theta, order):
    """The integral over tau of (path rate) (gain variance)^order |D_n|^(2 order)."""
    g_0, decay, rate, _ = LOW + np.array(theta) * (HIGH - LOW)
    tau = (np.arange(40_000) + 0.5) / 40_000 / DF
    variance = B * g_0 * np.exp(-tau / decay) / rate
    shape = amplitude(N * DF * tau, np.arange(N))
    return rate * (variance[:, None] * shape**2) ** order * (tau[1] - tau[0])


@pytest.mark.parametrize("theta", [(0.5, 0.5, 0.5, 0.5), (0.9, 0.1, 0.0, 0.2)])
def test_mean_and_fourth_moment_of_the_profile(theta):
    n = 24_000 if theta[2] == 0.0 else 3000  # two paths a channel, or five hundred
    power = powers(theta, n, seed=0)
    sigma2 = LOW[3] + theta[3] * (HIGH[3] - LOW[3])
    mean = profile(theta, 1).sum(0) + sigma2 / N
    assert (np.abs(power.mean(0) - mean) < 5 * power.std(0) / n**0.5).all()
    # A sum over a Poisson number of complex Gaussians: E|y|^4 = 2 (E|y|^2)^2 + 2 rate E[variance^2]. The second term
    # tells few paths from many; it is 2/3 of the first and more for theta = (.9, .1, 0, .2), two paths on average.
    fourth = 2 * mean**2 + 2 * profile(theta, 2).sum(0)
    error = (power**2).std(0) / n**0.5
    early = slice(0, 3)
    assert (np.abs((power**2).mean(0) - fourth)[early] < 5 * error[early]).all()
    if theta[2] == 0.0:
        assert ((fourth - 2 * mean**2)[early] > 5 * error[early]).all()


def test_powers():
    z = torch.polar(torch.ones(3), torch.tensor([0.1, -2.0, 3.0]))
    assert torch.allclose(_powers(z, 5)[4], z**4, atol=1e-6)


def test_channels_of_every_size_in_one_call():
    # Rows with 2 to 1,000 paths are batched by size: each must come back in its place. lambda_0 does not change the
    # mean profile, sigma^2 sets the floor of the last samples, where the side lobes of the paths are weak (small T).
    theta = torch.full((400, 4), 0.0)
    theta[:, 2] = torch.linspace(0, 1, 400)[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    theta[::2, 3], theta[1::2, 3] = 0.0, 1.0
    x = TASK.simulate(theta, seed=0)
    floor = 10 ** ((60 * x[:, 70:95].double() - 140) / 10)
    # sigma^2 / N is ten times higher in odd rows; 5,000 values of an exponential: good to 1.4 %, five of them.
    lobes = profile((0.0, 0.0, 0.5, 0.0), 1).sum(0)[70:95].mean()
    assert lobes < 0.5e-10 / N
    assert float(floor[::2].mean()) == pytest.approx(lobes + 1e-10 / N, rel=0.07, abs=0)
    assert float(floor[1::2].mean()) == pytest.approx(lobes + 1e-9 / N, rel=0.07, abs=0)


def test_parameters_outside_the_cube_give_nan_rows():
    theta = torch.tensor([[0.5, 0.5, 0.5, 0.5], [1.1, 0.5, 0.5, 0.5], [0.5, -0.1, 0.5, 0.5]])
    x = TASK.simulate(theta, seed=0)
    assert torch.isfinite(x[0]).all()
    assert torch.isnan(x[1:]).all()


def test_data_inform_all_parameters():
    # R^2 of a regression from the data; 0.34, 0.81, 0.16, 0.78 with far more simulations.
    theta = priors.sample(TASK.training_prior("id"), 4000, seed=0)
    x = TASK.simulate(theta, seed=1).numpy()
    for i, least in enumerate((0.15, 0.6, 0.03, 0.6)):
        model = HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=8, random_state=0)
        y = theta[:, i].numpy()
        assert model.fit(x[:3000], y[:3000]).score(x[3000:], y[3000:]) > least


@pytest.mark.parametrize(("regime", "mean", "scale"), [("id", (0.5,) * 4, 0.15), ("ood", (0.85, 0.2, 0.8, 0.15), 0.06)])
def test_target_priors(regime, mean, scale):
    q = TASK.target_prior(regime)
    assert torch.allclose(q.mean, torch.tensor(mean), atol=1e-5)
    assert torch.allclose(q.stddev, torch.full((4,), scale), atol=1e-5)
    drawn = priors.sample(q, 10_000, seed=0)
    assert torch.isfinite(priors.log_prob(TASK.training_prior(regime), drawn)).all()


def test_there_is_no_reference_and_the_task_says_so():
    theta, x = TASK.observations("id", 1, seed=0)
    assert TASK.reference_kind == "none (implicit likelihood)"
    with pytest.raises(InputError, match="no reference posterior"):
        TASK.reference(x[0], 10, "id")
    with pytest.raises(InputError, match="no tractable likelihood"):
        TASK.log_likelihood(theta, x[0])
