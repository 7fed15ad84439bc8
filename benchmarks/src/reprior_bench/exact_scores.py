"""Denoisers with an exact score, to measure a sampler by itself.

Gaussian N(m, C):             E[theta_0 | z] = m + C (C + s^2 I)^-1 (z - m)
points theta_i, equal weight: E[theta_0 | z] = sum_i w_i theta_i,   w = softmax(-|z - theta_i|^2 / (2 s^2))
"""

from __future__ import annotations

import torch
from torch import Tensor

from reprior.diffusion.denoiser import Denoiser, NoiseKind
from reprior.diffusion.schedule import VP

__all__ = ["EmpiricalDenoiser", "GaussianDenoiser"]

_ROWS = 500  # rows of the weights that are held at once


class _Exact(Denoiser):
    """One bound observation; noise as the VP process has it."""

    observations = 1
    noise: NoiseKind = "scalar"
    s_min, s_max = VP().level(VP().t_min), VP().level(VP().t_max)

    def __init__(self, dim: int):
        self.dim = dim
        self.x = torch.zeros(1, 1)


class GaussianDenoiser(_Exact):
    """The denoiser of N(m, C).

    Arguments:
        mean: m, with shape (d,).
        cov: C, with shape (d, d) or, for d = 1, any shape of one entry.
    """

    def __init__(self, mean: Tensor, cov: Tensor):
        super().__init__(len(mean))
        self.centre = mean.double()
        values, self.axes = torch.linalg.eigh(cov.double().reshape(self.dim, self.dim))
        self.variances = values

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        gain = self.variances / (self.variances + s.double() ** 2)
        along = (z.double() - self.centre) @ self.axes
        return (self.centre + (gain * along) @ self.axes.T).to(z.dtype)


class EmpiricalDenoiser(_Exact):
    """The denoiser of equally weighted points, with shape (N, d); s is one level."""

    def __init__(self, points: Tensor):
        super().__init__(points.shape[1])
        self.points = points

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        parts = []
        for rows in z.reshape(-1, self.dim).split(_ROWS):
            log_w = torch.cdist(rows, self.points, compute_mode="donot_use_mm_for_euclid_dist").square_()
            parts.append(torch.softmax(log_w.mul_(-0.5 / float(s) ** 2), -1) @ self.points)
        return torch.cat(parts).reshape(z.shape)
