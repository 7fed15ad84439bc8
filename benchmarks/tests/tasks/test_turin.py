"""Turin: powers against their means, the likelihood against brute force, the reference and the prediction by ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ive, logsumexp
from scipy.stats import kstest, ncx2
from torch.distributions import Independent, Uniform

from reprior import priors
from reprior.errors import InputError
from reprior_bench import tasks
from reprior_bench.tasks.turin_likelihood import OnePath, amplitude

TASK = tasks.get("turin")
N = 101


def test_amplitude_is_the_transform_of_a_path():
    u = np.array([0.0, 3.2, 50.4])
    k = np.arange(N)
    direct = np.abs(np.fft.ifft(np.exp(-2j * np.pi * np.outer(u, k) / N), axis=-1))
    assert np.allclose(amplitude(u, k), direct, atol=1e-12)


def test_simulator_powers():
    # E|y_n|^2 = m E_u |D_n(u)|^2 + sigma^2 / N, with u uniform on (0, 50.5) and m = g_0 / lambda_0.
    n, theta = 40_000, torch.tensor([0.6, 0.5, 0.4, 0.5])
    power = 10 ** (TASK.simulate(theta.expand(n, 4), seed=0).double().numpy() / 10)
    u = (np.arange(20_000) + 0.5) / 20_000 * 50.5
    expected = 1.5 * (amplitude(u, np.arange(N)) ** 2).mean(0) + 0.5 / N
    error = power.std(0) / n**0.5
    assert (np.abs(power.mean(0) - expected) < 5 * error).all()
    # In the far samples there is nothing but noise and side lobes: not of order m.
    assert 3 * power[:, 75].mean() < power[:, 25].mean()


def test_number_of_paths_is_poisson_plus_one():
    # At lambda_0 tau_max = 5 there are six paths on average; the total power is 6 g_0 / lambda_0 + sigma^2.
    n, rate = 20_000, 5e7
    theta = torch.tensor([3e7, 1.0, rate, 0.5])
    total = (10 ** (TASK.simulate(theta.expand(n, 4), seed=1).double() / 10)).sum(-1)
    expected = 6 * 3e7 / rate + 0.5
    assert float(total.mean()) == pytest.approx(expected, abs=5 * float(total.std()) / n**0.5)


def test_decay_of_the_gain():
    # T_rev = tau_max / 5: the mean gain is multiplied by (1 - exp(-5)) / 5.
    n = 40_000
    theta = torch.tensor([2.0, 2e-8, 0.5, 0.1])
    total = (10 ** (TASK.simulate(theta.expand(n, 4), seed=1).double() / 10)).sum(-1)
    expected = 4 * (1 - np.exp(-5)) / 5 + 0.1
    assert float(total.mean()) == pytest.approx(expected, abs=5 * float(total.std()) / n**0.5)


def test_parameters_that_are_not_positive_give_nan_rows():
    theta = torch.tensor([[0.6, 0.5, 0.5, 0.5], [0.6, 0.5, 0.5, -0.1], [0.6, 0.0, 0.5, 0.5]])
    x = TASK.simulate(theta, seed=0)
    assert torch.isfinite(x[0]).all()
    assert torch.isnan(x[1:]).all()
    value = TASK.log_likelihood(theta, x[0])
    assert torch.isfinite(value[0])
    assert (value[1:] == -torch.inf).all()


def brute_force(power, index, variance, mean_gain, cells):
    """log p(power | variance, m), and the log-weights of the cells (u, r), by a plain grid over both."""
    u = (np.arange(cells[0]) + 0.5) / cells[0] * 50.5
    r = (np.arange(cells[1]) + 0.5) / cells[1] * np.sqrt(45 * mean_gain)
    shape = amplitude(u, index)
    log_f = np.empty(cells)
    for j, root in enumerate(r):
        z = 2 * N * root / variance * np.sqrt(power[index]) * shape
        noise = np.log(N / variance) - N * (power[index] + (root * shape) ** 2) / variance
        log_f[:, j] = (noise + np.log(ive(0, z)) + z).sum(-1) + np.log(2 * root / mean_gain) - root**2 / mean_gain
    return logsumexp(log_f) + np.log(r[1] - r[0]) - np.log(cells[0]), u, r, log_f


def test_rice_density_is_the_noncentral_chi_square():
    # The formula of `brute_force` at one delay and one gain, against scipy.
    power, variance, root = np.array([0.3]), 0.5, 0.7
    z = 2 * N * root / variance * np.sqrt(power)
    value = np.log(N / variance) - N * (power + root**2) / variance + np.log(ive(0, z)) + z
    scale = variance / (2 * N)
    assert np.allclose(value, ncx2.logpdf(power / scale, 2, root**2 / scale) - np.log(scale))


@pytest.mark.parametrize("index", [np.arange(0, N, 10), np.arange(10)], ids=["spread", "first"])
def test_likelihood_matches_brute_force(index):
    _, x = TASK.observations("id", 3, seed=0)
    values = np.array([[0.35, 1.0], [0.6, 1.5]])
    for series in x[1:].double().numpy():
        power = 10 ** (series / 10)
        found = OnePath(power, index).log_likelihood(values[:, 0], values[:, 1])
        for value, (variance, mean_gain) in zip(found, values, strict=True):
            expected = brute_force(power, index, variance, mean_gain, (1515, 200))[0]
            # The tables are good to 0.003.
            assert value == pytest.approx(expected, abs=0.006)


def test_log_likelihood_is_a_density_of_the_data():
    # Not of the power: it carries the Jacobian of the decibels.
    theta, x = TASK.observations("id", 1, seed=1)
    power = 10 ** (x[0].double().numpy() / 10) - 1e-10
    t = theta.double().numpy()
    of_power = OnePath(power, np.arange(N)).log_likelihood(t[:, 3], t[:, 0] / t[:, 2])
    jacobian = np.log((power + 1e-10) * np.log(10) / 10).sum()
    assert float(TASK.log_likelihood(theta, x[0])[0]) == pytest.approx(float(of_power[0]) + jacobian, abs=1e-3)


def test_path_given_the_data_matches_brute_force():
    _, x = TASK.observations("id", 3, seed=2)
    index, n = np.arange(8), 4000
    for series in x.double().numpy():
        power = 10 ** (series / 10)
        path = OnePath(power, index)
        u, gain = path.draw(np.full(n, 0.5), np.full(n, 1.2), np.random.default_rng(0))
        _, grid_u, grid_r, log_f = brute_force(power, index, 0.5, 1.2, (1515, 200))
        weights = np.exp(log_f - log_f.max())
        for drawn, axis, marginal in ((u, grid_u, weights.sum(1)), (np.sqrt(gain), grid_r, weights.sum(0))):
            cdf = np.cumsum(marginal) / marginal.sum()
            edges = axis + (axis[1] - axis[0]) / 2
            empirical = np.searchsorted(np.sort(drawn), edges) / n
            # Kolmogorov's distance: 1.95 / sqrt(n) is exceeded once in a thousand; six comparisons.
            assert np.abs(empirical - cdf).max() < 2.2 / n**0.5


@pytest.mark.slow
def test_reference_is_calibrated(calibration):
    def statistics(theta):
        return torch.cat([theta, theta[:, :1] / theta[:, 2:3]], dim=-1)

    assert min(calibration(TASK, "id", 100, statistics)) > 0.001


def test_only_the_noise_is_informed():
    _, x = TASK.observations("id", 6, seed=0)
    prior = TASK.target_prior("id")
    ratios = torch.stack([TASK.reference(row, 2000, "id", seed=0).std(0) for row in x]).mean(0) / prior.stddev
    # The standard error of a ratio over 12,000 draws is 0.65 %; the widths differ from one observation to the next.
    assert (ratios[:3] > 0.96).all()
    assert 0.58 < float(ratios[3]) < 0.74


def test_reference_where_prior_and_data_disagree():
    # sigma^2 = 0.65 under the training prior N(0.35, 0.06^2): the fitted proposal takes over. Compared with quadrature
    # over sigma^2 alone (g_0 / lambda_0 is not informed: fixed at its prior mean it changes the mean by less than 1 %).
    x = TASK.simulate(torch.tensor([[0.7, 0.6, 0.65, 0.65]]), seed=3)
    drawn = TASK.reference(x[0], 4000, "ood", prior="training", seed=0).double()
    line = torch.linspace(0.2, 0.9, 701)
    theta = torch.stack([torch.full_like(line, v) for v in (0.7, 0.6, 0.65)] + [line], dim=-1)
    log_prior = -((line - 0.35) ** 2) / (2 * 0.06**2)
    weights = torch.softmax((TASK.log_likelihood(theta, x[0]) + log_prior).double(), 0)
    mean = float(weights @ line.double())
    sd = float(weights @ (line.double() - mean) ** 2) ** 0.5
    assert float(drawn[:, 3].mean()) == pytest.approx(mean, abs=5 * sd / 4000**0.5 + 0.002)
    assert float(drawn[:, 3].std()) == pytest.approx(sd, rel=0.08)


def test_a_wide_prior_works():
    _, x = TASK.observations("id", 1, seed=0)
    box = Independent(Uniform(torch.full((4,), 0.01), torch.full((4,), 2.0)), 1)
    drawn = TASK.reference(x[0], 500, "id", box)
    assert torch.isfinite(priors.log_prob(box, drawn)).all()
    assert 0.03 < float(drawn[:, 3].std()) < 0.15


def test_parameters_beyond_one_path_are_refused():
    _, x = TASK.observations("id", 1, seed=0)
    with pytest.raises(InputError, match="one path without decay"):
        TASK.log_likelihood(torch.tensor([[1.0, 1e-8, 1.0, 1.0]]), x[0])
    with pytest.raises(InputError, match="one path without decay"):
        TASK.log_likelihood(torch.tensor([[1.0, 1.0, 1e9, 1.0]]), x[0])


@pytest.mark.slow
def test_prediction_is_calibrated():
    # Given the first third: ranks of the power of the path and of the noise in the rest among 49 predictive draws.
    observed = torch.arange(N) < 34
    _, x = TASK.observations("id", 30, seed=5)

    def statistics(series):
        power = 10 ** (series[:, 34:] / 10)
        return torch.stack([power.max(-1).values, power.median(-1).values, series[:, 35], series[:, 90]], dim=-1)

    ranks = []
    for i in range(len(x)):
        hidden = torch.where(observed, x[i], torch.nan)
        drawn = TASK.predict_reference(hidden, observed, 49, "id", seed=i)
        assert torch.equal(drawn[:, observed], x[i, observed].expand(49, 34))
        ranks.append((statistics(drawn) < statistics(x[i : i + 1])).double().mean(0))
    for column in torch.stack(ranks).T:
        # Ranks on a grid of 50 values, steps of 0.02, against the scale 1/sqrt(30) = 0.18 of the test.
        assert kstest(column.numpy(), "uniform").pvalue > 0.001


def test_prediction_from_nothing_is_the_prior_predictive():
    x = TASK.predict_reference(torch.zeros(N), torch.zeros(N, dtype=torch.bool), 2000, "id", seed=0)
    total = (10 ** (x.double() / 10)).sum(-1)
    # E total = E g_0 E 1/lambda_0 + E sigma^2; E 1/lambda_0 = 2 (1 + 0.01 + 3 * 0.0001) for sd 10 % of the mean.
    assert float(total.mean()) == pytest.approx(0.6 * 2.0206 + 0.5, abs=5 * float(total.std()) / 2000**0.5)
