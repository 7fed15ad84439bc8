"""The coordinates of a transit, and fits of a log-density in them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from reprior import priors
from reprior.errors import InputError
from reprior.sequential.coordinates import Space, coordinates_of
from reprior.sequential.nuisance import Nuisance
from reprior.sequential.surrogate import CarriedRatio, Frame, choose, fit
from reprior.standardizer import Standardizer
from reprior_transits.coordinates import TRANSIT
from reprior_transits.known_period import redraw_period
from reprior_transits.transit import TransitSimulator
from reprior_transits.transit_prior import MEAN, PARAMETERS, STD, TransitPrior, fold_inclination

SCALE = Standardizer(torch.tensor(MEAN), torch.tensor(STD))


def test_transit_coordinates_are_blind_to_the_period_and_to_mirror_images():
    theta = priors.sample(TransitPrior(), 200, seed=0)
    other = redraw_period(theta, torch.Generator().manual_seed(1))
    other[:, 2] = 180 - other[:, 2]
    found = [TRANSIT.forward(one.double()) for one in (theta, other)]
    assert found[1] == pytest.approx(found[0], abs=1e-3)
    assert float((other[:, 3] - theta[:, 3]).abs().mean()) > 0.3


def test_a_canonical_theta_has_the_same_coordinates():
    theta = priors.sample(TransitPrior(mirrored=True), 200, seed=0)
    folded = fold_inclination(theta)
    found = [TRANSIT.forward(one.double()) for one in (theta, folded)]
    assert found[1] == pytest.approx(found[0], abs=1e-4)
    assert float(folded[:, 2].max()) <= 90
    assert float((folded[:, 2] - theta[:, 2]).abs().max()) > 1


def test_transit_coordinates_are_the_depth_and_the_duration_of_the_dip():
    theta = torch.tensor([[0.1, 12.0, inc, 4.0, 0.0, 0.35, 0.18, 0.001] for inc in (89.9, 88.0, 86.5)])
    flux = 1 - TransitSimulator(0.2, 1_024).flux(theta)
    depth, duration = TRANSIT.forward(theta.double())[:, :2].T
    # Relative to the first: shapes differ, so they agree within some per cent only.
    deepest = flux.max(1).values
    assert (depth - depth[0]) == pytest.approx((deepest / deepest[0]).log(), abs=0.02)
    width = (flux > deepest.unsqueeze(1) / 2).sum(1).double()
    assert (duration - duration[0]) == pytest.approx((width / width[0]).log(), abs=0.05)


def test_a_likelihood_that_is_bent_in_theta_is_plain_in_its_coordinates():
    def log_l(theta):  # a ring in the impact parameter, a ridge in a and P
        z = TRANSIT.forward(theta.double())
        return -0.5 * (((z[:, 1] + 1.2) / 0.2) ** 2 + ((z[:, 2] + 0.3) / 0.1) ** 2)

    theta = priors.sample(TransitPrior(mirrored=True), 4_000, seed=2)
    theta = theta[log_l(theta) > -15]
    values = log_l(theta)
    error = {}
    for coordinates in (None, TRANSIT):
        generator = torch.Generator().manual_seed(3)
        z = coordinates_of(theta, SCALE, coordinates)
        frame = Frame.over(z, generator)
        width, ridge = choose(frame, z[:600], values[:600], 0.0, generator)
        coefficients = fit(frame, z[:600], values[:600], width, ridge, 0.0)
        found = CarriedRatio.of(SCALE, torch.arange(z.shape[1]), frame, width, coefficients, coordinates)
        error[coordinates] = float((found(theta[600:]).double() - values[600:]).std())
        again = CarriedRatio.from_config(SCALE, found.config(), coordinates)
        again.load_state_dict(found.state_dict())
        assert torch.equal(again(theta[:50]), found(theta[:50]))
    # A quadratic in the coordinates: exact but for single precision.
    assert error[TRANSIT] < 0.01
    assert error[None] > 0.3


@pytest.mark.parametrize("nuisance", [("t0", "u1", "u2", "sigma"), ("t0", "sigma", "P")])
def test_nuisance_parameters_that_share_a_coordinate_with_carried_ones_are_refused(nuisance):
    scales = SimpleNamespace(theta=SCALE)
    posterior = SimpleNamespace(dim=8, prior=TransitPrior(), scales=scales, parameters=PARAMETERS)

    def make(names):
        return Nuisance(Space(posterior, TRANSIT), tuple(PARAMETERS.index(name) for name in names))

    assert make(("t0", "sigma")).columns.tolist() == [0, 1, 2, 4, 5]
    with pytest.raises(InputError, match=f"with {', '.join(nuisance)} as nuisance, coordinates 'transit' would lose"):
        make(nuisance)
