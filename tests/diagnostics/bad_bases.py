"""Bases that are wrong in a known way, for tests of the diagnostics."""

from __future__ import annotations

from dataclasses import replace

import torch
from exact import GaussianBase, gaussian_posterior
from torch import Tensor

from reprior.posterior import Posterior


class WrongWidth(GaussianBase):
    """The exact base with every posterior standard deviation multiplied by a factor."""

    def __init__(self, prior_cov: Tensor, c: float, factor: float):
        super().__init__(prior_cov, c)
        self.right = self.cov
        self.cov = factor**2 * self.right

    def posterior_mean(self, x: Tensor) -> Tensor:
        return (x.double() / self.c) @ (self.right if hasattr(self, "right") else self.cov)


class Deaf(GaussianBase):
    """A base that never looks at the first entry of x: calibrated, but it leaves information out. Identity prior."""

    def __init__(self, dim: int, c: float):
        super().__init__(torch.eye(dim), c)
        self.cov[0, 0] = 1.0  # the prior's own variance

    def posterior_mean(self, x: Tensor) -> Tensor:
        mean = (x.double() / self.c) @ self.cov
        return torch.cat([torch.zeros_like(mean[:, :1]), mean[:, 1:]], dim=1)


def wrong_width(factor: float, dim: int = 2, c: float = 0.3, n: int = 4_000) -> Posterior:
    """A posterior of the exact kind, too wide (factor > 1) or too narrow by a factor."""
    posterior, prior = gaussian_posterior(dim=dim, c=c, n=n)
    return replace(posterior, base=WrongWidth(prior.covariance_matrix, c, factor))


def deaf(dim: int = 2, c: float = 0.3, n: int = 8_000) -> Posterior:
    """A posterior that ignores the first entry of x."""
    posterior, _ = gaussian_posterior(dim=dim, c=c, n=n)
    return replace(posterior, base=Deaf(dim, c))
