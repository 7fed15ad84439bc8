"""How wide theta_0 is, given its noisy state: the covariance V_s and the slope of the denoised mean.

With C the covariance of p(theta | x), a Gaussian posterior has

    V_s = Var[theta_0 | z] = (C^-1 + I / s^2)^-1,        dD/dz = V_s / s^2 = C (C + s^2 I)^-1

whatever z. For other posteriors this is used as it is: it shapes proposals and twists, which need not be right.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Spread"]

FLOOR = 1e-5  # of a standardised unit: no posterior is taken to be narrower


@dataclass(frozen=True)
class Spread:
    """C of K observations, by its eigenvalues and axes.

    Attributes:
        values: with shape (K, D), in double precision.
        axes: with shape (K, D, D), one axis a column.
        centre: the posterior means, with shape (K, D).
    """

    values: Tensor
    axes: Tensor
    centre: Tensor

    @classmethod
    def of(cls, draws: Tensor) -> Spread:
        """From some base draws, with shape (n, K, D)."""
        theta = draws.transpose(0, 1).double()
        n, dim = theta.shape[1:]
        centre = theta.mean(1)
        gap = theta - centre.unsqueeze(1)
        cov = gap.mT @ gap / (n - 1)
        # Some draws do not settle small correlations: shrink them, the more the more parameters there are.
        keep = n / (n + dim)
        cov = keep * cov + (1 - keep) * torch.diag_embed(cov.diagonal(dim1=1, dim2=2))
        values, axes = torch.linalg.eigh(cov)
        return cls(values.clamp(min=FLOOR**2), axes, centre)

    def cov(self, s: float) -> Tensor:
        """V_s, with shape (K, D, D)."""
        return (self.axes * (self.values * s**2 / (self.values + s**2)).unsqueeze(1)) @ self.axes.mT

    def slope(self, s: float) -> Tensor:
        """dD/dz, with shape (K, D, D)."""
        return (self.axes * (self.values / (self.values + s**2)).unsqueeze(1)) @ self.axes.mT

    def select(self, index: Tensor) -> Spread:
        """Those of some observations."""
        return Spread(self.values[index], self.axes[index], self.centre[index])

    @property
    def width(self) -> Tensor:
        """The standard deviation along the longest axis, with shape (K,)."""
        return self.values.amax(-1).sqrt()
