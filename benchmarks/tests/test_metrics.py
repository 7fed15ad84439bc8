"""Metrics against closed forms; every margin comes from the sampling error of the estimate."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from reprior.errors import InputError
from reprior_bench import metrics

TWO_SAMPLE = [metrics.c2st, metrics.mmd, metrics.sliced_w2, metrics.w2]


def normal(n: int, d: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> torch.Tensor:
    """n standard normal draws in d dimensions, scaled, the first coordinate shifted."""
    draws = scale * torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    draws[:, 0] += shift
    return draws


def test_the_module_imports_nothing_heavy():
    code = "import sys, reprior_bench.metrics; print({'sbi', 'sklearn', 'ot'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def bayes_accuracy(delta: float) -> float:
    """Best accuracy between N(0, I) and N(delta e_1, I): Phi(delta / 2)."""
    return 0.5 * (1 + math.erf(delta / 2 / math.sqrt(2)))


def test_c2st_is_the_forest_of_sbi_and_close_to_the_bayes_accuracy():
    sbi_c2st = pytest.importorskip("sbi.utils.metrics").c2st
    a, b = normal(600, 2, seed=1), normal(600, 2, seed=2, shift=2.0)
    score = metrics.c2st(a, b)
    assert score == pytest.approx(float(sbi_c2st(a.double(), b.double())), abs=1e-12)
    # Standard error sqrt(.84 * .16 / 1200) = .011; a forest of full trees costs some .04 in accuracy.
    assert bayes_accuracy(2.0) - 0.07 < score < bayes_accuracy(2.0) + 0.033


@pytest.mark.parametrize("metric", [metrics.c2st, metrics.c2st_fast])
def test_c2st_of_sets_of_different_size_tells_no_sizes_apart(metric):
    few, many = normal(800, 2, seed=3), normal(4_000, 2, seed=4)
    for a, b in ((few, many), (many, few)):  # guessing the larger set is right in 83 %
        assert abs(metric(a, b) - 0.5) < 0.045  # 3.6 standard errors of .0125
    # Phi(.5) = .69 for a shift of 1; the forest's own cost as above.
    assert 0.6 < metric(few, normal(4_000, 2, seed=5, shift=1.0)) < 0.74


@pytest.mark.parametrize("metric", [metrics.c2st, metrics.c2st_fast])
def test_c2st_of_one_distribution_is_one_half(metric):
    score = metric(normal(1000, 3, seed=3), normal(1000, 3, seed=4))
    assert abs(score - 0.5) < 0.04  # 3.6 standard errors of .011


def test_duplicates_fire_the_forest_and_less_the_boosted_trees():
    pool = normal(1200, 4, seed=5)
    copies = pool[torch.randint(1200, (1200,), generator=torch.Generator().manual_seed(6))]
    reference = normal(1200, 4, seed=7)
    forest, boosted = metrics.c2st(reference, copies), metrics.c2st_fast(reference, copies)
    # .69 as measured on 5,000 samples; standard error sqrt(.25 / 2400) = .01.
    assert 0.64 < forest < 0.74
    assert boosted < forest - 0.05


def mmd_closed_form(delta: float, s: float, d: int, h: float) -> float:
    """MMD^2 of N(0, I) and N(delta e_1, s^2 I) under exp(-|u - v|^2 / (2 h^2)).

    u - v is Gaussian with covariance c I, and E exp(-|u - v|^2 / (2 h^2)) with mean shift m is
    (h^2 / (h^2 + c))^(d/2) exp(-m^2 / (2 (h^2 + c))).
    """

    def kernel(c: float, m: float) -> float:
        return (h**2 / (h**2 + c)) ** (d / 2) * math.exp(-(m**2) / (2 * (h**2 + c)))

    return kernel(2.0, 0.0) + kernel(2 * s**2, 0.0) - 2 * kernel(1 + s**2, delta)


@pytest.mark.parametrize(("delta", "s", "d", "h"), [(1.0, 1.0, 1, 0.7), (0.5, 1.5, 3, 2.0), (2.0, 0.5, 2, 1.0)])
def test_mmd_matches_its_closed_form(delta: float, s: float, d: int, h: float):
    truth = mmd_closed_form(delta, s, d, h)
    estimates = [
        metrics.mmd(normal(700, d, 2 * k, 0.0), normal(900, d, 2 * k + 1, delta, s), bandwidth=h) for k in range(20)
    ]
    # Unbiased: the mean of 20 estimates lies within 4 of its standard errors.
    error = np.std(estimates, ddof=1) / math.sqrt(20)
    assert abs(np.mean(estimates) - truth) < 4 * error
    assert error < 0.1 * truth


def test_mmd_agrees_with_sbi_at_the_median_bandwidth():
    unbiased_mmd_squared = pytest.importorskip("sbi.utils.metrics").unbiased_mmd_squared
    # sbi forms all pairs at once, which is why the benchmark has its own; more rows than a block, fewer than the
    # limit above which the median is subsampled.
    a, b = normal(1100, 2, seed=8).double(), normal(600, 2, seed=9, shift=0.7).double()
    assert metrics.mmd(a, b) == pytest.approx(float(unbiased_mmd_squared(a, b)), abs=1e-9)


def test_mmd_of_one_distribution_is_zero_and_its_bandwidth_the_median_distance():
    a, b = normal(1500, 2, seed=10), normal(1500, 2, seed=11)
    # Under the null the estimate is of order 1/n; 2/n bounds the kernel's part (k <= 1).
    assert abs(metrics.mmd(a, b)) < 2 / 1500
    # |u - v|^2 / 2 is chi-square with 2 degrees of freedom: median 2 log 2, so the distance is 2 sqrt(log 2).
    # With 2,048 points, the median's standard error is below 2 %.
    assert metrics.median_bandwidth(a, b) == pytest.approx(2 * math.sqrt(math.log(2)), rel=0.05)


def quantile_samples(n: int) -> torch.Tensor:
    """n standard normal values at the quantiles (i + 1/2) / n, in random order."""
    p = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    values = math.sqrt(2) * torch.erfinv(2 * p - 1)
    return values[torch.randperm(n, generator=torch.Generator().manual_seed(0))][:, None]


@pytest.mark.parametrize("metric", [metrics.w2, metrics.sliced_w2])
def test_w2_of_gaussians_in_one_dimension(metric):
    # W2^2(N(0, 1), N(m, s^2)) = m^2 + (s - 1)^2; quantile samples have no sampling error in m, and the
    # variance of 4,000 of them is within 1e-3 of 1.
    z = quantile_samples(4000)
    assert metric(z, 0.7 + 1.5 * z) == pytest.approx(math.sqrt(0.7**2 + 0.5**2), rel=2e-3)
    assert metric(z, z.flip(0)) < 1e-6


def test_w2_of_a_translation_is_its_length():
    a = normal(300, 3, seed=12).double()
    step = torch.tensor([0.3, -0.4, 1.2], dtype=torch.float64)  # length 1.3
    assert metrics.w2(a, a[torch.randperm(300)] + step) == pytest.approx(1.3, rel=1e-9)


def test_sliced_w2_of_a_translation_is_its_length_over_root_d():
    a = normal(500, 4, seed=13)
    step = torch.tensor([1.0, 1.0, 1.0, 1.0])
    # E (u'step)^2 = |step|^2 / d = 1. For one direction, (u'step)^2 / |step|^2 is Beta(1/2, 3/2) with
    # standard deviation .25, so the root of the mean of 2,000 is off by 4 * .25 / sqrt(2000) / 2 = 1.1 %.
    assert metrics.sliced_w2(a, a + step, projections=2000, seed=3) == pytest.approx(1.0, abs=0.035)
    assert metrics.sliced_w2(a, a + step, seed=3) == metrics.sliced_w2(a, a + step, seed=3)
    assert metrics.sliced_w2(a, a + step, seed=3) != metrics.sliced_w2(a, a + step, seed=4)


def test_wasserstein_of_sets_of_different_size():
    a = torch.tensor([[0.0, 0.0]])
    b = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    # Half the mass moves by 5.
    assert metrics.w2(a, b) == pytest.approx(math.sqrt(12.5))
    assert metrics.w2(a[:, :1], b[:, :1]) == pytest.approx(math.sqrt(4.5))


def test_random_metrics_leave_the_global_state_alone():
    def state() -> tuple[str, str]:
        return str(torch.get_rng_state().tolist()), str(np.random.get_state(legacy=False))  # noqa: NPY002

    with np.printoptions(threshold=10_000):
        before = state()
    a, b = normal(3000, 2, seed=1), normal(60, 2, seed=2)
    for metric in TWO_SAMPLE:
        metric(a[:60] if metric is not metrics.mmd else a, b)
    with np.printoptions(threshold=10_000):
        assert state() == before


def test_moment_errors_are_in_units_of_the_exact_samples():
    exact = torch.randn(2_000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1])
    assert metrics.moment_errors(exact, exact) == (0.0, 0.0)
    moved = exact.mean(0) + 0.3 * exact.std(0) + 1.2 * (exact - exact.mean(0))
    assert metrics.moment_errors(exact, moved) == pytest.approx((0.3, 0.2), abs=1e-5)


def test_rmse():
    samples = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
    assert metrics.rmse(samples, torch.tensor([1.0, 0.0])) == pytest.approx(math.sqrt((0 + 4 + 4 + 4) / 4))
    with pytest.raises(InputError, match=r"theta_star has shape \(3,\)"):
        metrics.rmse(samples, torch.zeros(3))
    with pytest.raises(InputError, match="finite"):
        metrics.rmse(samples, torch.tensor([1.0, math.nan]))


def test_best_group():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 0.7, size=10)
    values = {
        "best": base,
        "twin": base.copy(),  # all differences zero
        "noisy": base + 0.01 + 0.2 * rng.standard_normal(10),  # worse on average, not consistently
        "worse": base + 0.02 + 0.001 * rng.random(10),  # worse every time: p = 2^-10
    }
    values["noisy"] += max(0.0, 0.005 - (values["noisy"] - base).mean())
    assert metrics.best_group(values) == {"best", "twin", "noisy"}
    table = np.stack(list(values.values()), axis=1)
    assert metrics.best_group(table) == {0, 1, 2}
    assert metrics.best_group(torch.from_numpy(table)) == {0, 1, 2}


def test_best_group_level_is_exact():
    # Five observations, all worse: p = 1/32 = .03125 exactly. Four: 1/16.
    steps = np.arange(1.0, 6.0)
    assert metrics.best_group({"a": 0 * steps, "b": steps}, alpha=0.05) == {"a"}
    assert metrics.best_group({"a": 0 * steps, "b": steps}, alpha=0.03) == {"a", "b"}
    assert metrics.best_group({"a": 0 * steps[:4], "b": steps[:4]}) == {"a", "b"}
    assert metrics.best_group({"only": steps}) == {"only"}


def test_best_group_refuses_bad_values():
    with pytest.raises(InputError, match="'b' hold NaN"):
        metrics.best_group({"a": [1.0, 2.0], "b": [1.0, math.nan]})
    with pytest.raises(InputError, match="one value per observation"):
        metrics.best_group({"a": [1.0, 2.0], "b": [1.0]})
    with pytest.raises(InputError, match="shape"):
        metrics.best_group(np.zeros(3))
    with pytest.raises(InputError, match=r"alpha is 1\.5"):
        metrics.best_group(np.zeros((3, 2)), alpha=1.5)


@pytest.mark.parametrize("metric", TWO_SAMPLE)
def test_two_sample_metrics_refuse_bad_samples(metric):
    good = normal(20, 2, seed=0)
    with pytest.raises(InputError, match=r"b has shape \(20,\)"):
        metric(good, good[:, 0])
    with pytest.raises(InputError, match="same dimension"):
        metric(good, good[:, :1])
    with pytest.raises(InputError, match="a has 0 rows"):
        metric(good[:0], good)
    bad = good.clone()
    bad[3, 1] = math.nan
    with pytest.raises(InputError, match="b has 1 rows with NaN"):
        metric(good, bad)


def test_mmd_refuses_bad_bandwidths():
    a = normal(10, 2, seed=0)
    for bandwidth in (0.0, -1.0, math.inf, "mean"):
        with pytest.raises(InputError, match="bandwidth is"):
            metrics.mmd(a, a, bandwidth=bandwidth)
    with pytest.raises(InputError, match="median distance"):
        metrics.mmd(torch.zeros(4, 2), torch.zeros(4, 2))


def test_mmd_does_not_depend_on_where_zero_is():
    a, b = normal(400, 2, seed=1).double() * 1e-3, normal(400, 2, seed=2, shift=0.5).double() * 1e-3
    far = 2_459_000.0  # a date; its last digit in double precision is 5e-10
    assert metrics.mmd(a + far, b + far) == pytest.approx(metrics.mmd(a, b), abs=1e-5)
