"""Coordinates in which ``accumulate`` fits a log-density: what one observation sees of theta.

A fit is good where its coordinates suit the likelihood. Two theta with the same coordinates must have the same likelihood,
and the better if it is close to a Gaussian in them: then log p(theta | x) - log p(theta) is fitted in these
coordinates, and log p(theta), which is known, is added again.

- "theta": the parameters themselves, standardised; log p(theta | x) is fitted as it is.
- "transit": for theta = (k, a, inc, P, t0, u1, u2, sigma) of `reprior.lightcurve`,

      k,   log(a / P),   (a cos inc)^2,   t0,   u1,   u2,   log sigma.

  One transit knows the orbit by its speed a / P and its impact parameter a |cos inc| alone
  (`reprior.lightcurve.known_period`), and inclinations on both sides of 90 degrees are mirror images. What a network
  makes of P, or of a mirror image, beyond that is error, which this leaves out.

`TWINS` has, by name, a map from theta to another theta with the same coordinates: its mirror image. Both have one likelihood, so
the mean of a network's two log-likelihoods is what a fit in the coordinates is compared with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["COORDINATES", "TWINS"]

SMALL = 1e-6  # keeps logarithms finite for draws beyond the limits of a star and a planet


def _transit(theta: Tensor) -> Tensor:
    """The coordinates of theta, with shape (*, 8), in the user's units: with shape (*, 7)."""
    k, a, inc, period, t0, u1, u2, sigma = theta.unbind(-1)
    impact = a * torch.deg2rad(inc).cos()
    speed = a.clamp(min=SMALL) / period.clamp(min=SMALL)
    return torch.stack([k, speed.log(), impact**2, t0, u1, u2, sigma.clamp(min=SMALL).log()], dim=-1)


def _mirror(theta: Tensor) -> Tensor:
    """The mirror image, 180 - inc, of theta with shape (*, 8)."""
    sign, offset = torch.ones(8).to(theta), torch.zeros(8).to(theta)
    sign[2], offset[2] = -1, 180
    return offset + sign * theta


COORDINATES: dict[str, Callable[[Tensor], Tensor]] = {"transit": _transit}
TWINS: dict[str, Callable[[Tensor], Tensor]] = {"transit": _mirror}
