"""log p(theta | x) of the base up to a constant, at less cost than `Posterior.log_prob`.

The probability-flow ODE changes little below the posterior's narrowest width and is Gaussian far above its widest one.
With C the covariance of base draws, the integral therefore runs only from s_low = sqrt(smallest eigenvalue of C) / 5,
to s_high = 4 sqrt(largest), where it ends in N(m, C + s_high^2 I). The blur by the noise s_low is undone to first order
(the heat equation), with the velocity of the flow there, v = z - D = -s^2 score:

    log p_0 = log p_s - s^2/2 (div score + |score|^2) = log p_s + div v / 2 - |v|^2 / (2 s^2)

All in standardised units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.density import flow, integrate

__all__ = ["RelativeDensity"]

BELOW = (
    0.2  # s_low, in units of the narrowest standard deviation: what it blurs is of second order, and undone to first
)
ABOVE = 4.0  # s_high, in units of the widest one: the noise hides all but mean and covariance
STEP = 0.9  # the largest Runge-Kutta step in log s; its error is below that of the two ends
ROWS = 2_000  # points at once, which bounds the memory


@dataclass(frozen=True)
class RelativeDensity:
    """log p(theta | x) + const of one observation.

    Attributes:
        denoiser: the base with that observation bound.
        mean: the mean of base draws, with shape (d,).
        cov: their covariance, with shape (d, d).
    """

    denoiser: Denoiser
    mean: Tensor
    cov: Tensor

    def __call__(self, theta: Tensor) -> Tensor:
        """The log-density of standardised theta, with shape (n, d), in double precision, with shape (n,)."""
        return torch.cat([self._rows(part) for part in theta.split(ROWS)])

    def _rows(self, theta: Tensor) -> Tensor:
        widths = torch.linalg.eigvalsh(self.cov).clamp(min=1e-12).sqrt()
        low = max(self.denoiser.s_min, BELOW * float(widths[0]))
        high = min(self.denoiser.s_max, max(ABOVE * float(widths[-1]), 2 * low))
        steps = max(2, math.ceil(math.log(high / low) / STEP))
        grid = torch.linspace(math.log(low), math.log(high), steps + 1, dtype=torch.float64)
        start = theta.to(self.denoiser.x).unsqueeze(1)
        velocity, trace = flow(self.denoiser, start, grid[0])
        z, change = integrate(self.denoiser, start, grid)
        change = change + trace / 2 - (velocity.double() ** 2).sum(-1) / (2 * low**2)  # undoes the blur by s_low
        gap = z[:, 0].double().cpu() - self.mean
        end = self.cov + high**2 * torch.eye(len(self.mean), dtype=torch.float64)
        gauss = -(gap * torch.linalg.solve(end, gap.T).T).sum(-1) / 2
        return gauss + change[:, 0].cpu()
