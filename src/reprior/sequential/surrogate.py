"""A log ratio as a quadratic plus a few hundred radial basis functions, fitted to exact values.

The base's log-density costs an ODE a point, and a method asks for log r and its gradient many thousand times. In
coordinates u that are white over a region of theta, the values of one observation are fitted with

    y(u) = c + h' u - u' L u / 2 + sum_j w_j exp(-|u - u_j|^2 / (2 l^2))

the quadratic by least squares, with L not negative, then the bumps (the sum over j) by ridge regression on its residual.
The coefficients (c, h, L, w) of several observations in one frame add up to one function of the same cost, however many
there are. Away from the region the bumps vanish and the quadratic stays, which cannot grow. The width l and the ridge are
those with the smallest error on held-out values; no bumps at all is among the choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reprior.sequential.coordinates import Coordinates, coordinates_of, named
from reprior.standardizer import Standardizer

__all__ = ["CarriedRatio", "Frame", "choose", "fit"]

BUMPS = 250  # enough to follow a bent ridge in six parameters; the cost of log r grows with them
WIDTHS = (0.35, 0.7, 1.4, 2.8)  # of the bumps that are tried, times sqrt(c) whitened units
RIDGES = (1e-9, 1e-7, 1e-4)  # that are tried, a value of the fit being of order one
HELD_OUT = 0.2  # the part of the values that chooses width and ridge
DEEPEST = 60.0  # nats: values this far below the largest one have no weight, and would bend the quadratic
CLOSE = 1e-3  # nats: an error of the quadratic alone that needs no bumps


@dataclass(frozen=True)
class Frame:
    """White coordinates and bump centres over a region.

    Attributes:
        centre: the middle of the region, with shape (c,).
        whiten: u = (theta - centre) whiten, with shape (c, c).
        bumps: the bump centres u_j, with shape (B, c).
    """

    centre: Tensor
    whiten: Tensor
    bumps: Tensor

    @classmethod
    def over(cls, points: Tensor, generator: torch.Generator) -> Frame:
        """The frame of some points, with shape (n, c), in double precision."""
        points = points.double()
        centre = points.mean(0)
        cov = torch.cov(points.T).reshape(2 * points.shape[1:])
        values, vectors = torch.linalg.eigh(cov + 1e-10 * torch.eye(len(cov), dtype=torch.float64))
        whiten = vectors / values.sqrt()
        rows = torch.randperm(len(points), generator=generator)[:BUMPS]
        return cls(centre, whiten, (points[rows] - centre) @ whiten)

    def white(self, theta: Tensor) -> Tensor:
        """u of theta, with shape (n, c)."""
        return (theta.double() - self.centre) @ self.whiten

    def design(self, theta: Tensor, width: float) -> Tensor:
        """The regressors at theta, with shape (n, c): constant, linear, quadratic, bumps."""
        u = self.white(theta)
        return torch.cat([_monomials(u), _bumps(u, self.bumps, width)], -1)


def _monomials(u: Tensor) -> Tensor:
    """1, u and the products u_i u_j (i <= j), with shape (*, columns)."""
    i, j = torch.triu_indices(u.shape[-1], u.shape[-1])
    return torch.cat([torch.ones_like(u[..., :1]), u, u[..., i] * u[..., j]], -1)


def _bumps(u: Tensor, bumps: Tensor, width: float | Tensor) -> Tensor:
    """The bumps at u, with shape (*, B)."""
    square = (u**2).sum(-1, keepdim=True) + (bumps**2).sum(-1) - 2 * u @ bumps.T
    return torch.exp(-square.clamp(min=0) / (2 * width**2))


def _quadratic(u: Tensor, y: Tensor, lowest: float) -> Tensor:
    """The coefficients of the quadratic, by least squares; curvatures L are raised to `lowest`, the rest fitted again."""
    d = u.shape[1]
    i, j = torch.triu_indices(d, d)
    full = torch.linalg.lstsq(_monomials(u), y.unsqueeze(1)).solution[1 + d :, 0]
    upper = torch.zeros(d, d, dtype=torch.float64)
    upper[i, j] = full
    values, vectors = torch.linalg.eigh(-(upper + upper.T))
    L = vectors @ torch.diag(values.clamp(min=lowest)) @ vectors.T
    residual = y + ((u @ L) * u).sum(-1) / 2
    low = torch.linalg.lstsq(_monomials(u)[:, : 1 + d], residual.unsqueeze(1)).solution[:, 0]
    return torch.cat([low, torch.where(i == j, -L[i, j] / 2, -L[i, j])])


def fit(frame: Frame, theta: Tensor, values: Tensor, width: float, ridge: float, lowest: float) -> Tensor:
    """The coefficients, with shape (columns,), of values at theta, with shapes (n,) and (n, c).

    Arguments:
        width: of the bumps.
        ridge: the ridge; infinity for no bumps.
        lowest: the lowest curvature L of the quadratic, in whitened units: above zero, the function falls on all sides.
    """
    u, residual, quadratic = _minus_quadratic(frame, theta, values, lowest)
    if ridge == torch.inf:
        return torch.cat([quadratic, quadratic.new_zeros(len(frame.bumps))])
    return torch.cat([quadratic, *_ridge(_bumps(u, frame.bumps, width), residual, [ridge])])


def _minus_quadratic(frame: Frame, theta: Tensor, values: Tensor, lowest: float) -> tuple[Tensor, Tensor, Tensor]:
    """u of the points that are fitted, their values minus the quadratic, and its coefficients."""
    keep = values > values.max() - DEEPEST
    u, y = frame.white(theta[keep]), values[keep].double()
    quadratic = _quadratic(u, y, lowest)
    return u, y - _monomials(u) @ quadratic, quadratic


def _ridge(a: Tensor, residual: Tensor, ridges: Sequence[float]) -> list[Tensor]:
    """The coefficients of the bumps for each ridge, each with shape (B,); a: the bumps at the points, with shape (n, B)."""
    eye = torch.eye(a.shape[1], dtype=torch.float64)
    square, right = a.T @ a, a.T @ residual
    return [torch.linalg.solve(square + ridge * len(a) * eye, right) for ridge in ridges]


def choose(
    frame: Frame, theta: Tensor, values: Tensor, lowest: float, generator: torch.Generator
) -> tuple[float, float]:
    """The width and the ridge with the smallest held-out error; arguments as in `fit`."""
    order = torch.randperm(len(theta), generator=generator)
    cut = int(HELD_OUT * len(theta))
    held, kept = order[:cut], order[cut:]
    held = held[values[held] > values.max() - DEEPEST]
    u, residual, quadratic = _minus_quadratic(frame, theta[kept], values[kept], lowest)
    here = frame.white(theta[held])
    wanted = values[held] - _monomials(here) @ quadratic  # of the bumps
    best, chosen = float(wanted.square().mean().sqrt()), (1.0, torch.inf)
    for width in (w * theta.shape[1] ** 0.5 for w in WIDTHS):
        found = _ridge(_bumps(u, frame.bumps, width), residual, RIDGES)
        at_held = _bumps(here, frame.bumps, width)
        for ridge, weights in zip(RIDGES, found, strict=True):
            error = float((at_held @ weights - wanted).square().mean().sqrt())
            if best > CLOSE and error < 0.95 * best:  # bumps have to be worth it
                best, chosen = error, (width, ridge)
    return chosen


class CarriedRatio(nn.Module):
    """log r(theta) of parameters in the user's units, theta with shape (*, d) -> (*); nuisance entries do not count.

    Arguments:
        scale: the standardisation of theta.
        carried: the indices of the carried parameters (or coordinates), with shape (c,).
        bumps: the number of bumps.
        coordinates: what the fit is a function of; standardised theta if None.
    """

    scale: Standardizer
    carried: Tensor
    centre: Tensor
    whiten: Tensor
    bumps: Tensor
    width: Tensor
    coefficients: Tensor

    def __init__(self, scale: Standardizer, carried: Tensor, bumps: int, coordinates: Coordinates | None = None):
        super().__init__()
        self.scale, self.coordinates = scale, coordinates
        c = len(carried)
        zeros = {"centre": (c,), "whiten": (c, c), "bumps": (bumps, c), "width": ()}
        self.register_buffer("carried", carried)
        for name, shape in zeros.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        columns = 1 + c + c * (c + 1) // 2 + bumps
        self.register_buffer("coefficients", torch.zeros(columns, dtype=torch.float64))

    @classmethod
    def of(
        cls,
        scale: Standardizer,
        carried: Tensor,
        frame: Frame,
        width: float,
        coefficients: Tensor,
        coordinates: Coordinates | None = None,
    ) -> CarriedRatio:
        """From a frame and its coefficients."""
        count = len(frame.bumps) if bool(coefficients[-len(frame.bumps) :].any()) else 0
        made = cls(scale, carried, count, coordinates)
        for name, value in (("centre", frame.centre), ("whiten", frame.whiten), ("bumps", frame.bumps[:count])):
            getattr(made, name).copy_(value)
        made.width.fill_(width)
        made.coefficients.copy_(coefficients[: len(made.coefficients)])
        return made

    def forward(self, theta: Tensor) -> Tensor:
        z = coordinates_of(theta, self.scale, self.coordinates)[..., self.carried]
        u = (z - self.centre) @ self.whiten
        plain = len(self.coefficients) - len(self.bumps)
        value = _monomials(u) @ self.coefficients[:plain]
        if len(self.bumps):  # in single precision: they are small beside the quadratic
            bumps = _bumps(u.float(), self.bumps.float(), self.width.float())
            value = value + bumps @ self.coefficients[plain:].float()
        return value.to(theta.dtype)

    def config(self) -> dict[str, Any]:
        """The plain data that `from_config` needs; the tensors are those of `state_dict`."""
        name = None if self.coordinates is None else self.coordinates.name
        return {"carried": self.carried.tolist(), "bumps": len(self.bumps), "coordinates": name}

    @classmethod
    def from_config(
        cls, scale: Standardizer, config: Mapping[str, Any], coordinates: Coordinates | None = None
    ) -> CarriedRatio:
        """The module that `config` describes, without its tensors.

        Arguments:
            scale: the standardisation of theta.
            config: the plain data.
            coordinates: the object of the name in `config`, if there is one.
        """
        carried = torch.tensor(config["carried"], dtype=torch.long)
        return cls(scale, carried, config["bumps"], named(config["coordinates"], coordinates))
