"""Coordinates in which ``accumulate`` fits a log-density: what one observation sees of theta.

A fit is good where its coordinates suit the likelihood. Two theta with the same coordinates must have the same likelihood,
and the better if it is close to a Gaussian in them: then log p(theta | x) - log p(theta) is fitted in these
coordinates, and log p(theta), which is known, is added again.

- "theta": the parameters themselves, standardised; log p(theta | x) is fitted as it is.
- "transit": for theta = (k, a, inc, P, t0, u1, u2, sigma) of `reprior_transits`, with the impact parameter b = a |cos inc|,

      S = 1 + k^2 - b^2, smoothly kept above zero,    I = 1 - u1 (1 - mu) - u2 (1 - mu)^2 with mu^2 = S, at most 1,
      log(k^2 I),   log(P sqrt(S) / a),   log S,   t0,   u1,   u2,   log sigma:

  the depth of the dip, its duration at half depth, its shape (ingress over duration is k / S), and the rest. One transit
  knows the orbit by its speed a / P and its impact parameter alone (`reprior_transits.known_period`). In speed and impact
  parameter its likelihood is a bent ridge, as the duration is known far better than either; here it is straight.

Inclinations on both sides of 90 degrees are mirror images with one likelihood. `CANONICAL` has, by name, the map of theta to the one
with the same coordinates that the base knows best, inc <= 90 here: log-densities are computed there alone. What a
network makes of P, or of a mirror image, beyond the coordinates is error, which this leaves out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from reprior_transits.transit_prior import fold_inclination

__all__ = ["CANONICAL", "COORDINATES"]

SMALL = 1e-6  # keeps logarithms finite for draws beyond the limits of a star and a planet
SMOOTH = 0.05


def _transit(theta: Tensor) -> Tensor:
    """The coordinates of theta, with shape (*, 8), in the user's units: with shape (*, 7)."""
    k, a, inc, period, t0, u1, u2, sigma = theta.unbind(-1)
    k = k.clamp(min=1e-3)
    impact = a * torch.deg2rad(inc).cos()
    shape = SMOOTH * softplus((1 + k**2 - impact**2) / SMOOTH)
    shade = 1 - shape.clamp(max=1).sqrt()
    depth = 2 * k.log() + (1 - u1 * shade - u2 * shade**2).clamp(min=0.05).log()
    speed = a.clamp(min=SMALL) / period.clamp(min=SMALL)
    duration = shape.log() / 2 - speed.log()
    return torch.stack([depth, duration, shape.log(), t0, u1, u2, sigma.clamp(min=SMALL).log()], dim=-1)


COORDINATES: dict[str, Callable[[Tensor], Tensor]] = {"transit": _transit}
CANONICAL: dict[str, Callable[[Tensor], Tensor]] = {"transit": fold_inclination}
