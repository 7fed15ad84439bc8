"""Noise schedules and grids.

The variance-preserving (VP) schedule with beta(t) = b0 + t (b1 - b0) has

    alpha_t = exp(-t^2 (b1 - b0) / 4 - t b0 / 2),    sigma_t^2 = 1 - alpha_t^2,    s(t) = sigma_t / alpha_t

and beta dt = d log(1 + s^2), so a step of any VP process can be written in s alone (Song et al. 2021, arXiv 2011.13456).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["VP", "noise_grid"]


@dataclass(frozen=True)
class VP:
    """The variance-preserving schedule.

    Attributes:
        beta_min: beta at t = 0.
        beta_max: beta at t = 1.
        t_min: the smallest time that is used.
        t_max: the largest time that is used.
    """

    beta_min: float = 0.1
    beta_max: float = 10.0
    t_min: float = 1e-5
    t_max: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.beta_min < self.beta_max:
            raise InputError(f"VP needs 0 < beta_min < beta_max; got {self.beta_min} and {self.beta_max}")
        if not 0 < self.t_min < self.t_max <= 1:
            raise InputError(f"VP needs 0 < t_min < t_max <= 1; got {self.t_min} and {self.t_max}")

    def beta(self, t: Tensor) -> Tensor:
        """beta(t), the drift coefficient."""
        return self.beta_min + t * (self.beta_max - self.beta_min)

    def integral(self, t: Tensor) -> Tensor:
        """The integral of beta from 0 to t, which is log(1 + s^2)."""
        return t * self.beta_min + t**2 * (self.beta_max - self.beta_min) / 2

    def alpha(self, t: Tensor) -> Tensor:
        """alpha_t."""
        return torch.exp(-self.integral(t) / 2)

    def sigma(self, t: Tensor) -> Tensor:
        """sigma_t, accurate for small t."""
        return torch.sqrt(-torch.expm1(-self.integral(t)))

    def s(self, t: Tensor) -> Tensor:
        """s = sigma_t / alpha_t, accurate for small t."""
        return torch.sqrt(torch.expm1(self.integral(t)))

    def t(self, s: Tensor) -> Tensor:
        """The time at which sigma_t / alpha_t = s."""
        b = torch.log1p(s**2)
        slope = self.beta_max - self.beta_min
        # The positive root of slope/2 t^2 + beta_min t - b = 0, in the form that does not cancel for small b.
        return 2 * b / (self.beta_min + torch.sqrt(self.beta_min**2 + 2 * slope * b))

    def level(self, t: float) -> float:
        """s(t) as a float."""
        return math.sqrt(math.expm1(t * self.beta_min + t**2 * (self.beta_max - self.beta_min) / 2))


def noise_grid(s_start: float, s_min: float, steps: int, rho: float) -> Tensor:
    """Noise levels from s_start down to s_min: equal steps in s^(1/rho), so that low noise gets most of them.

    Returns: the levels, with shape (steps,), in double precision; the sampler goes on to zero after the last.
    """
    if steps < 2:
        raise InputError(f"a sampler needs at least 2 steps; got {steps}")
    ramp = torch.linspace(0, 1, steps, dtype=torch.float64)
    top, bottom = s_start ** (1 / rho), s_min ** (1 / rho)
    return (top + ramp * (bottom - top)) ** rho
