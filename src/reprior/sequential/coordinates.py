"""Coordinates in which ``accumulate`` fits a log-density: what one observation sees of theta.

A fit is good where its coordinates suit the likelihood. Without any, log p(theta | x) is fitted as a function of
standardised theta. Where the likelihood is a bent ridge in theta, or has mirror images, no simple function of theta follows
it. The caller then gives coordinates u(theta) in which it is nearly Gaussian: log p(theta | x) - log p(theta) is fitted as
a function of u, and log p(theta), which is known, is added again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reprior import priors
from reprior.errors import InputError
from reprior.standardizer import Standardizer

__all__ = ["Coordinates", "Space", "coordinates_of", "named"]


@dataclass(frozen=True)
class Coordinates:
    """Coordinates u(theta), given to `AccumulateSettings`.

    Attributes:
        name: a file that holds a carried prior names its coordinates; `reprior.load` asks for the object of that name.
        forward: u of theta in the user's units and in double precision, (*, d) -> (*, c). Two theta with the same u must have
            the same likelihood p(x | theta), whatever x. u must be finite for every finite theta and differentiable by
            autograd, which guides with its gradient.
        canonical: among the theta with the same u, the one that the base knows best, (*, d) -> (*, d); log-densities are
            computed there alone. None takes each theta as it is.
    """

    name: str
    forward: Callable[[Tensor], Tensor]
    canonical: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"coordinates need a name; got {self.name!r}")
        if not callable(self.forward) or not (self.canonical is None or callable(self.canonical)):
            raise InputError(f"coordinates {self.name!r}: forward and canonical must be callables of theta")


def named(name: str | None, coordinates: Coordinates | None) -> Coordinates | None:
    """The coordinates that a file names, as the caller gave them.

    Arguments:
        name: the name in the file; None if it names none.
        coordinates: the object that the caller gave.
    """
    if name == (None if coordinates is None else coordinates.name):
        return coordinates
    if name is None:
        assert coordinates is not None
        raise InputError(f"the file names no coordinates: load it without coordinates {coordinates.name!r}")
    got = "" if coordinates is None else f", not {coordinates.name!r}"
    raise InputError(
        f"the carried prior in the file is a function of the coordinates {name!r}: load(path, coordinates=...) needs the "
        f"Coordinates object of that name{got}"
    )


def coordinates_of(theta: Tensor, scale: Standardizer, coordinates: Coordinates | None) -> Tensor:
    """What fits are functions of, in double precision: u of theta, or standardised theta without coordinates.

    Arguments:
        theta: parameters in the user's units, with shape (*, d).
        scale: the standardisation of theta.
        coordinates: the coordinates.
    """
    return scale.forward(theta).double() if coordinates is None else coordinates.forward(theta.double())


class Space:
    """Standardised theta of a posterior: the log prior there, and the coordinates of fits.

    Arguments:
        posterior: the posterior.
        coordinates: the coordinates; standardised theta if None.
    """

    def __init__(self, posterior: Any, coordinates: Coordinates | None = None):
        self.prior, self.scale, self.dim = posterior.prior, posterior.scales.theta, posterior.dim
        self.parameters, self.coordinates = posterior.parameters, coordinates
        if coordinates is not None:
            self._check(coordinates)

    def _check(self, coordinates: Coordinates) -> None:
        theta = priors.sample(self.prior, 16, 0).double()
        u = coordinates.forward(theta)
        if u.ndim != 2 or len(u) != 16 or not bool(torch.isfinite(u).all()):
            raise InputError(
                f"coordinates {coordinates.name!r} must map theta with shape (16, {self.dim}) to finite (16, c); got "
                f"{tuple(u.shape)} with {int((~torch.isfinite(u)).sum())} entries that are not finite"
            )
        if coordinates.canonical is not None:
            gap = (coordinates.forward(coordinates.canonical(theta)) - u).abs().amax(0)
            if bool((gap > 1e-3 * (1 + u.abs().amax(0))).any()):  # well above rounding in single precision
                raise InputError(
                    f"coordinates {coordinates.name!r}: canonical(theta) must have the coordinates of theta"
                )

    def user(self, points: Tensor) -> Tensor:
        """Standardised theta, with shape (*, d), in the user's units and in single precision."""
        return self.scale.inverse(points.float())

    def standard(self, theta: Tensor) -> Tensor:
        """theta, with shape (*, d), in the user's units: standardised, canonical, in double precision."""
        if self.coordinates is not None and self.coordinates.canonical is not None:
            theta = self.coordinates.canonical(theta)
        return self.scale.forward(theta).double()

    def canonical(self, points: Tensor) -> Tensor:
        """Standardised theta with the coordinates of the points, with shape (*, d), where the base is asked."""
        plain = self.coordinates is None or self.coordinates.canonical is None
        return points if plain else self.standard(self.user(points))

    def place(self, points: Tensor) -> Tensor:
        """The coordinates of standardised theta, with shape (*, d): with shape (*, c)."""
        if self.coordinates is None:
            return points
        return coordinates_of(self.user(points), self.scale, self.coordinates)

    def log_prior(self, points: Tensor) -> Tensor:
        """log p of standardised theta, with shape (*, d), in double precision, with shape (*)."""
        return priors.log_prob(self.prior, self.user(points)).double()

    def inside(self, points: Tensor) -> Tensor:
        """Which standardised theta, with shape (*, d), lie in the prior's support."""
        return torch.isfinite(self.log_prior(points))
