"""What one light curve knows of theta: the coordinates in which the sequential update fits its likelihood.

For theta = (k, a, inc, P, t0, u1, u2, sigma), with the impact parameter b = a |cos inc|,

    S = 1 + k^2 - b^2, smoothly kept above zero,    I = 1 - u1 (1 - mu) - u2 (1 - mu)^2 with mu^2 = S, at most 1,
    log(k^2 I),   log(P sqrt(S) / a),   log S,   t0,   u1,   u2,   log sigma:

the depth of the dip, its duration at half depth, its shape (ingress over duration is k / S), and the rest. One transit knows
the orbit by its speed a / P and its impact parameter alone (`known_period`). In speed and impact parameter its likelihood
is a bent ridge, because the duration is known far better than either; in these coordinates the ridge is straight.

Inclinations on both sides of 90 degrees are mirror images with one likelihood. The canonical theta has inc <= 90: the
base's log-density is computed there alone. Whatever the network makes of P, or of a mirror image, beyond the coordinates is
an error of the network, and this leaves it out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from reprior.sequential import Coordinates
from reprior_transits.transit_prior import fold_inclination

__all__ = ["TRANSIT", "transit_coordinates"]

SMALLEST = 1e-6  # of a, P (days) and sigma: keeps logarithms finite for draws that are no star and planet
SMOOTHING = 0.05  # of S about zero, where a transit stops: far below the S of about 1 of a central transit


def transit_coordinates(theta: Tensor) -> Tensor:
    """The coordinates of theta, with shape (*, 8), in the user's units: with shape (*, 7)."""
    k, a, inc, period, t0, u1, u2, sigma = theta.unbind(-1)
    k = k.clamp(min=1e-3)  # far below the prior's mean of 0.1
    impact = a * torch.deg2rad(inc).cos()
    shape = SMOOTHING * softplus((1 + k**2 - impact**2) / SMOOTHING)
    darkening = 1 - shape.clamp(max=1).sqrt()
    depth = 2 * k.log() + (1 - u1 * darkening - u2 * darkening**2).clamp(min=0.05).log()  # a limb of at least 5 %
    speed = a.clamp(min=SMALLEST) / period.clamp(min=SMALLEST)
    duration = shape.log() / 2 - speed.log()
    return torch.stack([depth, duration, shape.log(), t0, u1, u2, sigma.clamp(min=SMALLEST).log()], dim=-1)


TRANSIT = Coordinates("transit", forward=transit_coordinates, canonical=fold_inclination)
