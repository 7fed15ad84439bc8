"""How a window looks: a base can learn from the simulated windows alone that look like a target's.

The prior is wide. Of 1,000 draws one or two have a dip as short, as shallow and as near to grazing as that of GJ 436, and a
network trained on all of them is blurred there. Which simulations a base learns
from may depend on x, though not on theta: keeping the windows with x in a set A gives the pairs the density
p(theta, x) / p(A), and p(theta | x) stays what it was for every x in A. So windows are simulated under the prior, and those
are kept that look like the target's: in depth, duration, noise and place of the dip as `summaries` measures them, and with
at most a fifth of the points missing (half of a long dip looks like a short one).

Most draws of the prior cannot look so, whatever the noise, and are never simulated. With b = a |cos inc| and v = 2 pi a / P,
for depths from d to D, durations at half depth from w to W, noise from s to S and dips from m to M, those that can have

    k^2 > d / 2,    w < 2 sqrt((1 + k)^2 - b^2) / v < 2 W,    s / 1.25 < sigma < 1.25 S,    m - W / 6 < t0 < M + W / 6,

and unless they are grazing (b > 1 - k), k^2 < 1.5 D and 0.7 w < 2 sqrt(1 - b^2) / v < 1.25 W: the time between the half-way
points of ingress and egress.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from reprior.errors import InputError
from reprior_transits.summaries import NOISE, SUMMARIES, summaries
from reprior_transits.transit_prior import PARAMETERS, impact_parameter

__all__ = ["Look"]

MISSING = 0.2  # the largest part of the points that may be missing: half of a long dip looks like a short one
Range = tuple[float, float]


@dataclass(frozen=True)
class Look:
    """The windows that look alike: (lowest, highest) of what is measured of a window.

    Attributes:
        depth: of the dip, relative flux.
        duration: at half of the depth, in days.
        noise: per point, relative flux.
        middle: of the dip, in days from the centre of the window.
    """

    depth: Range
    duration: Range
    noise: Range
    middle: Range

    def __post_init__(self) -> None:
        for name, (low, high) in asdict(self).items():
            if not low < high or (name != "middle" and low < 0):
                raise InputError(f"{name} must be (lowest, highest), not negative; got ({low}, {high})")

    @property
    def name(self) -> str:
        """Every number, as a part of a file's name."""
        return "-".join(f"{name}{low:g}to{high:g}" for name, (low, high) in asdict(self).items())

    def seen(self, x: Tensor, half_width: float) -> Tensor:
        """True for windows x, with shape (n, points), that look so; with shape (n,)."""
        found = dict(zip(SUMMARIES, summaries(x).unbind(-1), strict=True))
        measured = {
            "depth": found["depth"].sinh() * NOISE,
            "duration": found["full"].expm1() * 2 * half_width / x.shape[-1],
            "noise": found["noise"].exp() * NOISE,
            "middle": found["middle"] * half_width,
        }
        kept = torch.isnan(x).float().mean(-1) <= MISSING
        for name, (low, high) in asdict(self).items():
            kept &= (measured[name] > low) & (measured[name] < high)
        return kept

    def possible(self, theta: Tensor) -> Tensor:
        """False for theta, with shape (n, 8), whose window can hardly look so; with shape (n,)."""
        value = dict(zip(PARAMETERS, theta.unbind(-1), strict=True))
        k, b = value["k"], impact_parameter(theta)
        slow = value["P"] / (2 * math.pi * value["a"])
        whole, half = (2 * (radius**2 - b**2).clamp(min=0).sqrt() * slow for radius in (1 + k, torch.ones_like(k)))
        (shallow, deep), (short, long), (quiet, loud), (early, late) = asdict(self).values()
        full = (k**2 < 1.5 * deep) & (half > 0.7 * short) & (half < 1.25 * long)
        fits = (k**2 > shallow / 2) & (whole > short) & (whole < 2 * long) & (full | (b > 1 - k))
        fits &= (value["sigma"] > quiet / 1.25) & (value["sigma"] < 1.25 * loud)
        return fits & (value["t0"] > early - long / 6) & (value["t0"] < late + long / 6)
