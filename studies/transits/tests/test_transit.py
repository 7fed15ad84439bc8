from __future__ import annotations

import numpy as np
import pytest
import torch

from reprior import priors
from reprior.errors import InputError
from reprior_transits import transit as module
from reprior_transits.transit import TransitSimulator, random_gaps
from reprior_transits.transit_prior import MEAN, TransitPrior, impact_parameter, physical

FULL = [0.12, 9.0, 88.0, 3.5, 0.01, 0.35, 0.18, 0.001]
GRAZING = [0.15, 9.0, 83.3, 3.5, -0.02, 0.30, 0.20, 0.001]


def disc(theta, times):
    """The flux by direct integration over the planet's disc: midpoints of 500 radii times 1,000 angles."""
    k, a, inc, period, t0, u1, u2, _ = theta
    rho, angle = np.meshgrid(k * (np.arange(500) + 0.5) / 500, 2 * np.pi * (np.arange(1000) + 0.5) / 1000)
    area = rho * (k / 500) * (2 * np.pi / 1000)
    out = []
    for t in times:
        phi = 2 * np.pi * (t - t0) / period
        z = a * np.sqrt(np.sin(phi) ** 2 + (np.cos(np.deg2rad(inc)) * np.cos(phi)) ** 2)
        r2 = z**2 + rho**2 + 2 * z * rho * np.cos(angle)
        mu = np.sqrt(np.clip(1 - r2, 0, None))
        bright = np.where(r2 < 1, 1 - u1 * (1 - mu) - u2 * (1 - mu) ** 2, 0.0)
        out.append(1 - (bright * area).sum() / (np.pi * (1 - u1 / 3 - u2 / 6)))
    return np.array(out)


@pytest.mark.parametrize("theta", [FULL, GRAZING])
def test_flux_equals_a_direct_integration_over_the_limb_darkened_disc(theta):
    simulator = TransitSimulator(half_width=0.1, points=24, supersample=1)
    flux = simulator.flux(torch.tensor([theta], dtype=torch.float64))[0].numpy()
    assert flux.min() < 0.998  # the transit is there
    # The grid's error at the sharp limb is about 1e-7; pytransit's orbit is right to 1e-5 for a > 3.
    np.testing.assert_allclose(flux, disc(theta, simulator.time), rtol=0, atol=1e-5)


def test_a_point_is_the_mean_flux_over_its_bin():
    theta = torch.tensor([FULL, GRAZING], dtype=torch.float64)
    fine = TransitSimulator(half_width=0.5, points=128 * 64, supersample=1).flux(theta)
    exact = fine.reshape(2, 128, 64).mean(-1)
    error = (TransitSimulator().flux(theta) - exact).abs().max()
    assert error < 1e-4  # stated: 6e-5 at worst over 2,000 prior draws
    assert (TransitSimulator(supersample=1).flux(theta) - exact).abs().max() > 5 * error


def test_inclination_above_90_degrees_is_the_mirror_image():
    theta = priors.sample(TransitPrior(), 200, seed=0).double()
    mirror = theta.clone()
    mirror[:, 2] = 180 - theta[:, 2]
    simulator = TransitSimulator()
    torch.testing.assert_close(simulator.flux(mirror), simulator.flux(theta), rtol=0, atol=1e-9)


def test_every_prior_draw_has_a_light_curve_flat_where_nothing_transits():
    theta = priors.sample(TransitPrior(mirrored=True), 20_000, seed=1)
    flux = TransitSimulator().flux(theta)
    assert torch.isfinite(flux).all()
    assert flux.max() <= 1 + 1e-6
    assert flux.min() > 0.85  # the deepest possible: k^2 / (1 - u1/3 - u2/6) with k = 0.1 + 4 x 0.04
    none = impact_parameter(theta) > 1 + theta[:, 0] + 1e-5
    assert (flux[none] == 1).all()
    # A binomial fraction: 6 % +- 0.17 % each; the docs say 6 % and 6 %.
    assert none.double().mean() == pytest.approx(0.06, abs=0.01)
    grazing = (impact_parameter(theta) > 1 - theta[:, 0]) & ~none
    assert grazing.double().mean() == pytest.approx(0.06, abs=0.01)


def test_noise_has_the_standard_deviation_sigma_and_depends_on_the_seed_only():
    theta = priors.sample(TransitPrior(), 2_000, seed=2)
    simulator = TransitSimulator()
    state = torch.get_rng_state()
    x = simulator.simulate(theta, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert x.dtype == torch.float32
    assert x.shape == (2_000, 128)
    z = (x.double() - simulator.flux(theta)) / theta[:, -1:]
    n = z.numel()
    assert abs(float(z.mean())) < 4 / np.sqrt(n)
    assert abs(float(z.std()) - 1) < 4 / np.sqrt(2 * n)
    assert torch.equal(x, simulator.simulate(theta, seed=3))
    assert not torch.equal(x, simulator.simulate(theta, seed=4))
    assert simulator.simulate(theta[:1], seed=0).shape == (1, 128)
    assert simulator.simulate(theta[:0], seed=0).shape == (0, 128)


def test_unphysical_parameters_raise_or_give_nan_rows():
    theta = torch.tensor([MEAN, MEAN])
    theta[1, 0] = -0.01
    with pytest.raises(InputError, match=r"1 of 2 parameter sets are unphysical, first row 1: k=-0.01.*0 < k < 1"):
        TransitSimulator().simulate(theta, seed=0)
    x = TransitSimulator(unphysical="nan").simulate(theta, seed=0)
    assert torch.isfinite(x[0]).all()
    assert torch.isnan(x[1]).all()
    assert physical(theta).tolist() == [True, False]


def test_settings_and_shapes_are_checked():
    with pytest.raises(InputError, match="supersample must be at least 1; got 0"):
        TransitSimulator(supersample=0)
    with pytest.raises(InputError, match="unphysical must be one of raise, nan; got 'drop'"):
        TransitSimulator(unphysical="drop")
    with pytest.raises(InputError, match=r"theta must have shape \(n, 8\); got \(8,\)"):
        TransitSimulator().flux(torch.tensor(MEAN))


def test_random_gaps_are_runs_at_an_edge_or_inside():
    gaps = random_gaps(4_000, 128, seed=0, single=0.0)
    assert torch.equal(gaps, random_gaps(4_000, 128, seed=0, single=0.0))
    assert (gaps.double().mean(1) <= 0.6).all()
    # Windows with any gap: 1 - 0.7 x 0.7 = 0.51, standard error 0.008.
    assert gaps.any(1).double().mean() == pytest.approx(0.51, abs=0.032)
    edges = random_gaps(4_000, 128, seed=1, edge=1.0, inside=0.0, single=0.0)
    runs = (edges.int().diff(dim=1) != 0).sum(1)
    assert (runs == 1).all()  # one change: a run from the start, or to the end
    assert edges[:, 0].double().mean() == pytest.approx(0.5, abs=0.032)
    inner = random_gaps(4_000, 128, seed=2, edge=0.0, inside=1.0, single=0.0)
    assert ((inner.int().diff(dim=1) != 0).sum(1) <= 2).all()
    assert inner.sum(1).max() == 12
    assert not random_gaps(10, 128, seed=0, edge=0.0, inside=0.0, single=0.0).any()
    single = random_gaps(4_000, 128, seed=3, edge=0.0, inside=0.0)
    assert single.double().mean() == pytest.approx(0.01, abs=4 * (0.01 / (4_000 * 128)) ** 0.5)
    with pytest.raises(InputError, match=r"edge, inside and single must lie in \[0, 1\]; got 2, 0.3 and"):
        random_gaps(1, 128, seed=0, edge=2)


def test_an_import_that_lost_a_race_for_a_file_is_made_again(monkeypatch):
    real, calls = module.import_module, []

    def fails_once(name):
        calls.append(name)
        if len(calls) == 1:
            raise FileNotFoundError("the file of a day")
        return real(name)

    monkeypatch.setattr(module, "import_module", fails_once)
    assert module.transit_model(np.linspace(-0.1, 0.1, 5), 0.01, 1) is not None
    assert calls == ["pytransit", "pytransit"]
