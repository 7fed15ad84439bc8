"""A learned log ratio a(z, s, x) as a twist: `nre` and the other estimators become exact.

a is trained to be log E_p[r(theta_0) | z, x] up to a constant, which drops out of the weights. Its gradient in z is that of
the network, and of the denoised mean where a depends on that, with dD/dz = V_s / s^2: no backward pass through the base.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reprior.methods.smc.spread import Spread

__all__ = ["LearnedTwist"]


class LearnedTwist:
    """The twist.

    Arguments:
        log_ratio: a, with shape (n, K), from z, with shape (n, K, D), the noise level and the denoised mean.
    """

    def __init__(self, log_ratio: Callable[[Tensor, Tensor, Tensor], Tensor]):
        self.log_ratio = log_ratio

    def covers(self, points: Tensor) -> bool:
        """Whether it holds at points, with shape (n, d): a network goes on everywhere."""
        return True

    def minus(self, part: object) -> None:
        """What a Gaussian part leaves of it: not known."""
        return None

    def bind(self, spread: Spread) -> Callable[[Tensor, float, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """The twist for K observations; its slope is that in z."""

        def twist(mean: Tensor, s: float, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            with torch.enable_grad():
                here, there = z.detach().requires_grad_(True), mean.detach().requires_grad_(True)
                a = self.log_ratio(here, z.new_tensor(s), there)
                own, of_mean = torch.autograd.grad(a.sum(), (here, there), allow_unused=True)
            slope = torch.zeros_like(z) if own is None else own
            if of_mean is not None:
                slope = slope + torch.einsum("nki,kij->nkj", of_mean, spread.slope(s).to(z))
            flat = torch.zeros(z.shape[1], z.shape[2], z.shape[2], dtype=torch.float64)
            return a.detach().double().nan_to_num(neginf=-torch.inf), slope.nan_to_num().double(), flat

        twist.costly = twist.of_state = True  # pyright: ignore[reportFunctionMemberAccess]
        return twist
