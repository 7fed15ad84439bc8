"""Simulations: what is kept, dropped and refused; standardisation against known distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import distributions as td

from reprior import io
from reprior.errors import FileFormatError, InputError
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

PRIOR = td.Independent(td.Uniform(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 3.0])), 1)


def pairs(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = torch.tensor([0.0, -1.0]) + torch.tensor([1.0, 4.0]) * torch.rand(n, 2, generator=generator)
    return theta, torch.randn(n, 3, generator=generator)


def test_good_simulations_are_kept_as_they_are(recwarn):
    theta, x = pairs(50)
    sims = Simulations.create(theta, x, prior=PRIOR)
    assert len(sims) == 50
    assert torch.equal(sims.theta, theta)
    assert torch.equal(sims.x, x)
    assert sims.parameters == ("theta_1", "theta_2")
    assert sims.prior is PRIOR
    assert sims.dropped == 0
    assert not sims.has_missing
    assert len(recwarn) == 0


def test_arrays_and_lists_become_float32():
    sims = Simulations.create(np.arange(3.0)[:, None], [[1], [2], [3]], parameters=["rate"])
    assert sims.theta.dtype == sims.x.dtype == torch.float32
    assert sims.x[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert sims.parameters == ("rate",)


@pytest.mark.parametrize(
    ("theta", "x", "message"),
    [
        (torch.zeros(4), torch.zeros(4, 2), r"theta has shape \(4,\).*theta\[:, None\]"),
        (torch.zeros(4, 1), torch.zeros(4), r"x has shape \(4,\).*x\[:, None\]"),
        (torch.zeros(4, 1), torch.zeros(4, 2, 2), r"x\.reshape\(len\(x\), -1\)"),
        (torch.zeros(4, 1), torch.zeros(5, 2), "theta has 4 rows and x has 5"),
        (torch.zeros(0, 1), torch.zeros(0, 2), "no rows"),
        (torch.zeros(4, 0), torch.zeros(4, 2), r"theta has shape \(4, 0\)"),
    ],
)
def test_wrong_shapes_are_refused(theta, x, message):
    with pytest.raises(InputError, match=message):
        Simulations.create(theta, x)


def test_bad_settings_are_refused():
    theta, x = pairs(5)
    with pytest.raises(InputError, match="missing is 'ignore'"):
        Simulations.create(theta, x, missing="ignore")
    with pytest.raises(InputError, match=r"max_bad_fraction is 1\.0"):
        Simulations.create(theta, x, max_bad_fraction=1.0)
    with pytest.raises(InputError, match=r"parameters is \['a'\]: theta has 2 columns"):
        Simulations.create(theta, x, parameters=["a"])
    with pytest.raises(InputError, match="names must differ"):
        Simulations.create(theta, x, parameters=["a", "a"])


def test_a_prior_that_cannot_have_made_theta_is_refused():
    theta, x = pairs(200)
    with pytest.raises(InputError, match="prior has dimension 1"):
        Simulations.create(theta, x, prior=td.Independent(td.Normal(torch.zeros(1), torch.ones(1)), 1))
    narrow = td.Independent(td.Uniform(torch.tensor([0.0, -1.0]), torch.tensor([0.5, 3.0])), 1)
    with pytest.raises(InputError, match=r"% of theta have zero density"):
        Simulations.create(theta, x, prior=narrow)


def test_bad_rows_are_dropped_counted_and_announced():
    theta, x = pairs(100)
    x[3, 1] = math.nan
    x[5, 0] = math.inf
    theta[7, 0] = -math.inf
    with pytest.warns(UserWarning, match=r"dropped 3 of 100 simulations \(3\.0%\)"):
        sims = Simulations.create(theta, x, prior=PRIOR)
    assert sims.dropped == 3
    keep = [i for i in range(100) if i not in (3, 5, 7)]
    assert torch.equal(sims.theta, theta[keep])
    assert torch.equal(sims.x, x[keep])


def test_too_many_bad_rows_are_refused_and_the_limit_is_inclusive():
    theta, x = pairs(100)
    x[:10, 0] = math.nan
    with pytest.warns(UserWarning, match="dropped 10"):
        assert len(Simulations.create(theta, x)) == 90
    x[10, 0] = math.nan
    with pytest.raises(InputError, match=r"11 of 100 simulations \(11\.0%\).*allows 10\.0%"):
        Simulations.create(theta, x)


def test_values_too_large_for_float32_count_as_infinite():
    theta, x = pairs(20)
    wide = x.double()
    wide[4, 2] = 1e300
    with pytest.warns(UserWarning, match="dropped 1"):
        assert Simulations.create(theta, wide).dropped == 1


def test_missing_values_are_kept_on_request():
    theta, x = pairs(100)
    x[:40, 0] = math.nan  # not observed
    x[50] = math.nan  # nothing observed: failed
    x[51, 2] = math.inf
    with pytest.warns(UserWarning, match="dropped 2"):
        sims = Simulations.create(theta, x, missing="keep")
    assert sims.dropped == 2
    assert sims.has_missing
    assert int(sims.x.isnan().sum()) == 40


def test_split_is_a_partition_that_the_seed_decides():
    theta, x = pairs(101)
    sims = Simulations.create(theta, x, prior=PRIOR, parameters=["a", "b"])
    first, second = sims.split(0.9, seed=3)
    assert (len(first), len(second)) == (91, 10)
    assert first.parameters == second.parameters == ("a", "b")
    assert first.prior is PRIOR
    both = torch.cat([torch.cat([part.theta, part.x], dim=1) for part in (first, second)])
    # Every row once: equal after sorting by the first column (which has no ties).
    whole = torch.cat([theta, x], dim=1)
    assert torch.equal(both[both[:, 0].argsort()], whole[whole[:, 0].argsort()])
    assert torch.equal(sims.split(0.9, seed=3)[0].theta, first.theta)
    assert not torch.equal(sims.split(0.9, seed=4)[0].theta, first.theta)
    for fraction in (0.0, 1.0, -0.5, 0.001):
        with pytest.raises(InputError, match=f"fraction is {fraction}"):
            sims.split(fraction, seed=0)


def test_save_and_load(tmp_path):
    theta, x = pairs(30)
    x[2, 1] = math.nan
    sims = Simulations.create(theta, x, prior=PRIOR, parameters=["a", "b"], missing="keep")
    path = sims.save(tmp_path / "sims")
    back = Simulations.load(tmp_path / "sims")
    assert io.header_of(path)["kind"] == "simulations"
    assert torch.equal(back.theta, sims.theta)
    assert torch.equal(back.x.nan_to_num(7.0), sims.x.nan_to_num(7.0))
    assert back.parameters == ("a", "b")
    assert torch.equal(back.prior.log_prob(theta), PRIOR.log_prob(theta))
    io.write(tmp_path / "other", "posterior", {}, {})
    with pytest.raises(FileFormatError, match="holds 'posterior'"):
        Simulations.load(tmp_path / "other")


def test_a_prior_of_ones_own_is_passed_again(tmp_path):
    class Mine:
        event_shape = torch.Size((2,))

        def sample(self, shape=()):
            return PRIOR.sample(shape)

        def log_prob(self, theta):
            return PRIOR.log_prob(theta)

    sims = Simulations.create(*pairs(30), prior=Mine())
    with pytest.warns(UserWarning, match="Mine"):
        sims.save(tmp_path / "sims")
    assert Simulations.load(tmp_path / "sims").prior is None
    prior = Mine()
    assert Simulations.load(tmp_path / "sims", prior=prior).prior is prior


def test_plain_standardizer_gives_mean_zero_and_deviation_one():
    values = 1e4 + torch.tensor([1e-3, 50.0]) * torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    values[:, 0] -= 1e4
    standard = Standardizer.fit(values).forward(values)
    assert standard.mean(dim=0).abs().max() < 1e-4
    assert (standard.std(dim=0, correction=0) - 1).abs().max() < 1e-4
    back = Standardizer.fit(values).inverse(standard)
    assert torch.allclose(back, values, rtol=1e-6)


def test_robust_standardizer_finds_the_gaussian_under_heavy_tails():
    # 98 % N(3, 2^2), 2 % at 1e6, half on each side. The central range must stay within its sampling error:
    # a quantile at p has standard error sqrt(p (1 - p) / n) / density = .011 sd at n = 20,000 (p = .16), and
    # the contamination moves it by less than .02 / 2 / density(1 sd) = .04 sd.
    generator = torch.Generator().manual_seed(1)
    values = 3 + 2 * torch.randn(20_000, 1, generator=generator)
    values[:200] = 1e6
    values[200:400] = -1e6
    robust = Standardizer.fit(values, robust=True)
    assert robust.shift.item() == pytest.approx(3, abs=0.08)
    assert robust.scale.item() == pytest.approx(2, rel=0.06)
    assert Standardizer.fit(values).scale.item() > 1e5


@pytest.mark.parametrize("robust", [False, True])
def test_columns_that_are_compared_share_one_shift_and_scale(robust):
    values = torch.randn(400, 3, generator=torch.Generator().manual_seed(4)) * torch.tensor([1.0, 2, 5]) + torch.tensor(
        [0.0, 1, 9]
    )
    values[3, 1] = math.nan
    pooled = Standardizer.fit(values, robust=robust, pooled=True)
    flat = Standardizer.fit(values.reshape(-1, 1), robust=robust)
    assert torch.equal(pooled.shift, flat.shift.expand(3))
    assert torch.equal(pooled.scale, flat.scale.expand(3))
    kept = values[4:]  # the order within a row is kept
    assert torch.equal(pooled.forward(kept).argsort(1), kept.argsort(1))
    torch.testing.assert_close(pooled.inverse(pooled.forward(kept)), kept)


def test_quantiles_agree_with_numpy_and_leave_nan_out():
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(501, 4, generator=generator).exp()
    values[torch.rand(501, 4, generator=generator) < 0.3] = math.nan
    robust = Standardizer.fit(values, robust=True)
    low, middle, high = np.nanquantile(values.double().numpy(), [0.158655, 0.5, 0.841345], axis=0)
    np.testing.assert_allclose(robust.shift, middle, rtol=1e-6)
    np.testing.assert_allclose(robust.scale, (high - low) / 2, rtol=1e-6)
    plain = Standardizer.fit(values)
    np.testing.assert_allclose(plain.shift, np.nanmean(values.double().numpy(), axis=0), rtol=1e-6)
    np.testing.assert_allclose(plain.scale, np.nanstd(values.double().numpy(), axis=0), rtol=1e-6)
    assert torch.equal(plain.forward(values).isnan(), values.isnan())


@pytest.mark.parametrize("robust", [False, True])
def test_degenerate_columns_get_a_usable_scale(robust: bool):
    n = 1000
    values = torch.zeros(n, 4)
    values[:, 0] = 10.0  # constant
    values[:, 1] = math.nan  # never observed
    values[:50, 2] = 3.0  # mostly zero
    values[:, 3] = 1e8
    values[0, 3] = 1e8 + 8  # one rounding step of float32
    fitted = Standardizer.fit(values, robust=robust)
    assert fitted.scale[[0, 1, 3]].tolist() == [1.0, 1.0, 1.0]
    assert fitted.scale[2].item() == pytest.approx(3 * math.sqrt(0.05 * 0.95), rel=1e-5)
    assert fitted.shift[[0, 1]].tolist() == [10.0, 0.0]
    assert fitted.forward(values)[:, [0, 2, 3]].isfinite().all()


def test_compression_is_invertible_smooth_monotone_and_leaves_the_centre_alone():
    fitted = Standardizer(torch.tensor([2.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64), True)
    u = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([-1e12, -300.0, 300.0, 1e12])]).double()
    u = u.sort().values
    values = (2 + 0.5 * u)[:, None].requires_grad_()
    out = fitted.forward(values)
    inside = u.abs() <= 5
    assert torch.allclose(out[inside, 0], u[inside], atol=1e-12)
    assert torch.allclose(fitted.inverse(out), values, rtol=1e-9)
    assert (out[1:] > out[:-1]).all()
    assert out.abs().max() < 5 + math.log(1e12) + 1
    # Derivative: 1 / scale inside, 1 / (scale (1 + |u| - 5)) outside, the same at the seam.
    (gradient,) = torch.autograd.grad(out.sum(), values)
    expected = 2 / (1 + (u.abs() - 5).clamp(min=0))
    off_seam = (u.abs() - 5).abs() > 1e-6
    assert torch.allclose(gradient[off_seam, 0], expected[off_seam], rtol=1e-9)


def test_compression_tames_exploding_series():
    # y <- a y + noise is unstable for a > 1, one row in ten here; the worst, a = 1.6, grows by 1e5.
    generator = torch.Generator().manual_seed(3)
    a = 0.6 + 0.3 * torch.randn(5000, generator=generator)
    y = torch.ones(5000)
    for _ in range(25):
        y = a * y + 0.3 * torch.randn(5000, generator=generator)
    values = y[:, None]
    plain = Standardizer.fit(values, robust=True).forward(values)
    tamed = Standardizer.fit(values, robust=True, compress=True).forward(values)
    assert plain.std() > 1000
    assert tamed.std() < 4
    assert tamed.abs().max() < 5 + math.log(1e6)


def test_standardizer_refuses_bad_values():
    with pytest.raises(InputError, match=r"values has shape \(3,\)"):
        Standardizer.fit(torch.zeros(3))
    with pytest.raises(InputError, match="infinity"):
        Standardizer.fit(torch.tensor([[math.inf], [0.0]]))
    with pytest.raises(InputError, match="scale is"):
        Standardizer(torch.zeros(2), torch.tensor([1.0, 0.0]))
    with pytest.raises(InputError, match="shift is"):
        Standardizer(torch.tensor([math.nan]), torch.ones(1))
    with pytest.raises(InputError, match=r"both must be \(k,\)"):
        Standardizer(torch.zeros(2), torch.ones(3))


def test_what_single_precision_would_round_away_is_told():
    generator = torch.Generator().manual_seed(0)
    near = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    far = near.clone()
    far[:, 1] = 2_459_000 + 0.05 * near[:, 1]  # days: single precision has steps of a quarter
    with pytest.raises(InputError, match=r"column 1 of theta lies about 24590\d\d\..* Subtract an offset"):
        Simulations.create(far, near)
    with pytest.raises(InputError, match="column 1 of theta"):
        Simulations.create(far.float(), near)  # a torch prior draws in single precision
    with pytest.warns(UserWarning, match="column 1 of x"):
        Simulations.create(near, far)
    constant = near.clone()
    constant[:, 0] = 2_459_000.0
    assert len(Simulations.create(near, constant)) == 50


def test_rows_of_all_rounds_are_compared_with_the_prior():
    prior = td.Independent(td.Normal(torch.zeros(1), torch.ones(1)), 1)
    first = torch.randn(6_000, 1, generator=torch.Generator().manual_seed(0))
    later = 0.3 + 0.1 * torch.randn(6_000, 1, generator=torch.Generator().manual_seed(1))
    both = Simulations.create(torch.cat([first, later]), torch.zeros(12_000, 1), prior=prior)
    with pytest.warns(UserWarning, match="theta_1 of the simulations is not distributed as under the prior. So it is"):
        both.warn_if_not_drawn("So it is")


class Table:
    """Stands for a DataFrame."""

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return self.values


def test_tables_are_taken():
    values = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    made = Simulations.create(Table(values[:, :1]), Table(values))
    assert np.array_equal(made.x.numpy(), values)
    assert repr(made) == "Simulations(50 of (theta_1) and x of 3)"


def test_a_parameter_that_never_changes_is_named():
    theta = torch.cat([torch.randn(40, 1), torch.full((40, 1), 0.2)], dim=1)
    with pytest.raises(InputError, match=r"column 1 of theta is 0\.2 in every row"):
        Simulations.create(theta, torch.randn(40, 2))
