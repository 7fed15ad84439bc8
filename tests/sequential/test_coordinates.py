"""Fits in coordinates of the likelihood."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from needs import needs_pytransit

from reprior import priors
from reprior.errors import InputError
from reprior_transits.known_period import redraw_period
from reprior_transits.transit_prior import MEAN, STD, TransitPrior
from reprior.sequential.coordinates import CANONICAL, COORDINATES
from reprior.sequential.settings import AccumulateSettings
from reprior.sequential.surrogate import CarriedRatio, Frame, choose, coordinates_of, fit
from reprior.sequential.terms import Terms
from reprior.standardizer import Standardizer

SCALE = Standardizer(torch.tensor(MEAN), torch.tensor(STD))


def test_transit_coordinates_are_blind_to_the_period_and_to_mirror_images():
    theta = priors.sample(TransitPrior(), 200, seed=0)
    other = redraw_period(theta, torch.Generator().manual_seed(1))
    other[:, 2] = 180 - other[:, 2]
    found = [COORDINATES["transit"](one.double()) for one in (theta, other)]
    assert found[1] == pytest.approx(found[0], abs=1e-3)
    assert float((other[:, 3] - theta[:, 3]).abs().mean()) > 0.3


def test_a_canonical_theta_has_the_same_coordinates():
    theta = priors.sample(TransitPrior(mirrored=True), 200, seed=0)
    folded = CANONICAL["transit"](theta)
    found = [COORDINATES["transit"](one.double()) for one in (theta, folded)]
    assert found[1] == pytest.approx(found[0], abs=1e-4)
    assert float(folded[:, 2].max()) <= 90
    assert float((folded[:, 2] - theta[:, 2]).abs().max()) > 1


def test_transit_coordinates_are_the_depth_and_the_duration_of_the_dip():
    needs_pytransit()
    from reprior_transits.transit import TransitSimulator

    theta = torch.tensor([[0.1, 12.0, inc, 4.0, 0.0, 0.35, 0.18, 0.001] for inc in (89.9, 88.0, 86.5)])
    flux = 1 - TransitSimulator(0.2, 1_024).flux(theta)
    depth, duration = COORDINATES["transit"](theta.double())[:, :2].T
    # Relative to the first: shapes differ, so they agree within some per cent only.
    deepest = flux.max(1).values
    assert (depth - depth[0]) == pytest.approx((deepest / deepest[0]).log(), abs=0.02)
    width = (flux > deepest.unsqueeze(1) / 2).sum(1).double()
    assert (duration - duration[0]) == pytest.approx((width / width[0]).log(), abs=0.05)


def test_a_likelihood_that_is_bent_in_theta_is_plain_in_its_coordinates():
    def log_l(theta):  # a ring in the impact parameter, a ridge in a and P
        z = COORDINATES["transit"](theta.double())
        return -0.5 * (((z[:, 1] + 1.2) / 0.2) ** 2 + ((z[:, 2] + 0.3) / 0.1) ** 2)

    theta = priors.sample(TransitPrior(mirrored=True), 4_000, seed=2)
    theta = theta[log_l(theta) > -15]
    values = log_l(theta)
    error = {}
    for name in ("theta", "transit"):
        generator = torch.Generator().manual_seed(3)
        z = coordinates_of(theta, SCALE, name)
        frame = Frame.over(z, generator)
        width, ridge = choose(frame, z[:600], values[:600], 0.0, generator)
        found = CarriedRatio.of(
            SCALE,
            torch.arange(z.shape[1]),
            frame,
            width,
            fit(frame, z[:600], values[:600], width, ridge, 0.0),
            name,
        )
        error[name] = float((found(theta[600:]).double() - values[600:]).std())
        again = CarriedRatio(SCALE, **{**found.config(), "carried": torch.tensor(found.config()["carried"])})
        again.load_state_dict(found.state_dict())
        assert torch.equal(again(theta[:50]), found(theta[:50]))
    # A quadratic in the coordinates: exact but for single precision.
    assert error["transit"] < 0.01
    assert error["theta"] > 0.3


def test_unknown_coordinates_are_named():
    with pytest.raises(InputError, match="coordinates 'orbit' are unknown; allowed: theta, transit"):
        AccumulateSettings(coordinates="orbit")


@pytest.mark.parametrize("nuisance", [("t0", "u1", "u2", "sigma"), ("t0", "sigma", "P")])
def test_nuisance_parameters_that_share_a_coordinate_with_carried_ones_are_refused(nuisance):
    prior = TransitPrior()
    names = ("k", "a", "inc", "P", "t0", "u1", "u2", "sigma")
    posterior = SimpleNamespace(dim=8, prior=prior, scales=SimpleNamespace(theta=SCALE), parameters=names)

    def make(left):
        return Terms(posterior, tuple(names.index(n) for n in left), 100, 10, coordinates="transit")  # pyright: ignore

    assert make(("t0", "sigma")).columns.tolist() == [0, 1, 2, 4, 5]
    with pytest.raises(InputError, match=f"with {', '.join(nuisance)} as nuisance, coordinates='transit' would lose"):
        make(nuisance)
