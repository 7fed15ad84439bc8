"""Coordinates that a caller gives: fits in them, updates, and files."""

from __future__ import annotations

import pytest
import torch
from exact import gaussian_posterior

import reprior
from reprior.errors import InputError
from reprior.loading import adapted_parts, rebuild_adapted
from reprior.methods import RejuvenateSettings
from reprior.sequential import AccumulateSettings, Coordinates
from reprior.sequential.coordinates import Space, coordinates_of, named
from reprior.sequential.surrogate import CarriedRatio, Frame, choose, fit
from reprior.standardizer import Standardizer

UNIT = Standardizer(torch.zeros(2), torch.ones(2))
POSTERIOR, PRIOR = gaussian_posterior(dim=2, c=0.3, rho=0.4, noise="diagonal")
X = torch.randn(3, 2, generator=torch.Generator().manual_seed(5))
TURNED = Coordinates("turned", lambda theta: theta @ theta.new_tensor([[1.0, 1.0], [1.0, -1.0]]))
POLAR = Coordinates(
    "polar",
    forward=lambda theta: torch.stack([theta[..., 0].abs() * theta[..., 1].cos(), theta[..., 0] ** 2], -1),
    canonical=lambda theta: theta.abs(),
)


def quick(coordinates):
    settings = RejuvenateSettings(pool=1_000)
    return AccumulateSettings(points=200, checks=40, moves=30, rejuvenate=settings, coordinates=coordinates)


def test_what_is_bent_in_theta_is_quadratic_in_its_coordinates():
    def log_l(theta):
        z = POLAR.forward(theta.double())
        return -0.5 * ((z[:, 0] - 0.5) / 0.3) ** 2 - 0.5 * ((z[:, 1] - 2) / 0.8) ** 2

    theta = torch.randn(6_000, 2, generator=torch.Generator().manual_seed(0)) * 1.5
    theta = theta[log_l(theta) > -12]
    values = log_l(theta)
    error = {}
    for coordinates in (None, POLAR):
        generator = torch.Generator().manual_seed(3)
        z = coordinates_of(theta, UNIT, coordinates)
        frame = Frame.over(z, generator)
        width, ridge = choose(frame, z[:600], values[:600], 0.0, generator)
        coefficients = fit(frame, z[:600], values[:600], width, ridge, 0.0)
        found = CarriedRatio.of(UNIT, torch.arange(2), frame, width, coefficients, coordinates)
        error[coordinates] = float((found(theta[600:]).double() - values[600:]).std())
        again = CarriedRatio.from_config(UNIT, found.config(), coordinates)
        again.load_state_dict(found.state_dict())
        assert torch.equal(again(theta[:50]), found(theta[:50]))
    # A quadratic in the coordinates: exact but for single precision.
    assert error[POLAR] < 0.01
    assert error[None] > 0.1


def test_an_update_in_coordinates_is_the_closed_form_and_is_saved_with_their_name(tmp_path):
    updates = reprior.update(
        POSTERIOR, X, settings=quick(TURNED), samples=2_000, progress=False, folder=tmp_path / "run"
    )
    cov = torch.linalg.inv(torch.linalg.inv(PRIOR.covariance_matrix) + len(X) * torch.eye(2) / 0.3)
    mean, sd = cov @ X.sum(0) / 0.3, cov.diagonal().sqrt()
    samples = updates[-1].samples
    # 2,000 draws: the mean is known to .022 sd and the sd to 1.6 %; four times that, and 2 % for the fit.
    assert float(((samples.mean(0) - mean) / sd).abs().max()) < 0.11
    assert float((samples.std(0) / sd - 1).abs().max()) < 0.085
    again = reprior.update(POSTERIOR, X, settings=quick(TURNED), samples=2_000, progress=False, folder=tmp_path / "run")
    assert torch.equal(again[-1].samples, samples)
    log_r = updates[-1].adapted.log_r(X)  # pyright: ignore
    assert torch.equal(again[-1].adapted.log_r(X), log_r)  # pyright: ignore
    parts = adapted_parts(updates[-1].adapted)  # pyright: ignore
    assert torch.equal(rebuild_adapted(POSTERIOR, *parts, coordinates=TURNED).log_r(X), log_r)
    with pytest.raises(InputError, match="coordinates 'turned'"):
        rebuild_adapted(POSTERIOR, *parts)


def test_a_file_that_names_coordinates_needs_them():
    assert named(None, None) is None
    assert named("polar", POLAR) is POLAR
    with pytest.raises(InputError, match=r"coordinates 'polar': load\(path, coordinates=...\) needs the Coordinates"):
        named("polar", None)
    with pytest.raises(InputError, match=r"of that name, not 'turned'"):
        named("polar", TURNED)
    with pytest.raises(InputError, match=r"names no coordinates: load it without coordinates 'polar'"):
        named(None, POLAR)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Coordinates("", torch.sin), "need a name; got ''"),
        (lambda: Coordinates("a", "sin"), "'a': forward and canonical must be callables"),  # pyright: ignore
        (lambda: Space(POSTERIOR, Coordinates("a", torch.log)), r"to finite \(16, c\); got \(16, 2\) with \d+ entries"),
        (lambda: Space(POSTERIOR, Coordinates("a", lambda theta: theta[..., 0])), r"got \(16,\)"),
        (
            lambda: Space(POSTERIOR, Coordinates("a", torch.sin, torch.abs)),
            "canonical.theta. must have the coordinates",
        ),
    ],
)
def test_bad_coordinates_are_refused(made, message):
    with pytest.raises(InputError, match=message):
        made()


def test_canonical_points_keep_their_coordinates():
    space = Space(POSTERIOR, POLAR)
    points = torch.randn(100, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    there = space.canonical(points)
    assert float(there.min()) >= 0
    assert torch.allclose(space.place(there), space.place(points), atol=1e-5)
    assert torch.equal(Space(POSTERIOR).canonical(points), points)
