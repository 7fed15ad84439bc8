"""The Gaussian guess: what a Gaussian fitted to (theta, x) says of some variables, given others and noisy ones.

With mean mu and covariance C of (theta, x), and the variables split into given (g), diffused (u) and absent ones,

    m = mu_u + C_ug C_gg^-1 (v_g - mu_g),      R = C_uu - C_ug C_gg^-1 C_gu

is the linear regression of u on g and the covariance it leaves open, for every split from one fit. With noisy values
z = v + N(0, S), S = diag(s^2), the Gaussian's own denoiser and what that leaves open are

    D_0(z) = m + R P (z - m) = z - S P (z - m),      P = (R + S)^-1,      open^2 = diag(S - S P S)

Where the rows are few for the variables, C is drawn to its diagonal, by the share with which the theta of left-out rows is most
likely given their x: a covariance of few rows promises narrow directions that are not there.

A network that learns (v - D_0) / open has nothing to do where (theta, x) is jointly Gaussian, for any noise and any
split, and goes on along the line where data lie outside the simulations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Conditional", "GaussianGuess"]

RIDGE = 1e-4  # of the variance: keeps the guess tame where variables repeat each other
NARROWEST = 1e-3  # the smallest standard deviation it leaves open
FEW = 20  # rows for each variable, below which the covariance is cross-validated
FOLDS = 5
SHARES = (0.0, *(10 ** (-4 + k / 4) for k in range(17)))


@dataclass(frozen=True)
class Conditional:
    """The Gaussian of D diffused variables, given others, for K observations.

    Attributes:
        centre: m, with shape (K, 1, D).
        width: the square root of R's diagonal, with shape (1 or K, 1, D).
        roots: the eigenvalues of R, with shape (1 or K, 1, D).
        axes: its eigenvectors, in columns, with shape (1 or K, D, D).
    """

    centre: Tensor
    width: Tensor
    roots: Tensor
    axes: Tensor

    def denoise(self, off: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """P (z - m), the same in units of its standard deviation, and `open`, each broadcasting to (K, N, D).

        Arguments:
            off: z - m, with shape (K, N, D).
            s: noise levels, with shape (1 or K, 1 or N, 1 or D).
        """
        if s.shape[-1] == 1:  # R and S share their axes
            inner = 1 / (self.roots + s**2)
            share = (self.roots * inner) @ self.axes.transpose(-1, -2).square()
            pulled = (off @ self.axes * inner) @ self.axes.transpose(-1, -2)
            size = (inner @ self.axes.transpose(-1, -2).square()).sqrt()
            return pulled, pulled / size, s * share.clamp(min=1e-12).sqrt()
        # S^1/2 P S^1/2 = (I + S^-1/2 R S^-1/2)^-1 is of order one at any noise.
        wide = s.double()
        half = (self.axes.double() * self.roots.double().sqrt()).unsqueeze(1) / wide.unsqueeze(-1)
        eye = torch.eye(half.shape[-1], dtype=half.dtype, device=half.device)
        scaled = torch.linalg.inv(eye + half @ half.transpose(-1, -2))
        kept = scaled.diagonal(dim1=-2, dim2=-1)
        left = (s * (1 - kept).clamp(min=1e-12).sqrt()).to(off)
        size = (kept.clamp(min=1e-12).sqrt() / wide).to(off)
        precision = (scaled / wide.unsqueeze(-1) / wide.unsqueeze(-2)).to(off)
        if precision.shape[1] == 1:
            pulled = off @ precision.squeeze(1)
        else:
            pulled = (off.unsqueeze(-2) @ precision).squeeze(-2)
        return pulled, pulled / size, left


class GaussianGuess(nn.Module):
    """The Gaussian of (theta, x); before `fit`, a standard one: centre 0 and width 1.

    Arguments:
        size: the number d + m of variables.
    """

    mean: Tensor
    cov: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("cov", torch.eye(size))

    @torch.no_grad()
    def fit(self, values: Tensor, dim: int = 0) -> None:
        """Takes mean and covariance from the rows that have the entries.

        Arguments:
            values: theta and x, with shape (n, d + m).
            dim: the number d of parameters, where few rows are to be guarded against.
        """
        seen = (~torch.isnan(values)).double()
        filled = values.double().nan_to_num(nan=0.0)
        mean = filled.sum(0) / seen.sum(0).clamp(min=1)
        centred = (filled - mean) * seen
        cov = (centred.T @ centred) / (seen.T @ seen).clamp(min=1)
        if bool((seen == 0).any()):  # pairs seen in different rows need not give a covariance: make it one
            roots, axes = torch.linalg.eigh(cov)
            cov = (axes * roots.clamp(min=0)) @ axes.T
        if dim and FOLDS <= len(values) < FEW * values.shape[1]:
            share = _best_share(centred / cov.diagonal().clamp(min=RIDGE).sqrt(), dim)
            cov = (1 - share) * cov + share * torch.diag(cov.diagonal())
        self.mean.copy_(mean)
        self.cov.copy_(cov)

    @torch.no_grad()
    def forward(self, values: Tensor, given: Tensor, diffused: Tensor) -> Conditional:
        """The Gaussian of the diffused variables.

        Arguments:
            values: the variables, with shape (K, d + m); given ones are read; NaN, in any column, where missing.
            given: indices of the given variables.
            diffused: indices of the D diffused variables.
        """
        seen = ~torch.isnan(values[:, torch.cat([given, diffused])])
        # One regression for each pattern of missing entries; as a rule there is one pattern, with nothing missing.
        whole = bool(seen.all())
        patterns, which = (seen[:1], None) if whole else torch.unique(seen, dim=0, return_inverse=True)
        gain, roots, axes = self._regress(given, diffused, patterns.double())
        width = (axes.square() @ roots.unsqueeze(-1)).squeeze(-1).sqrt()
        parts = [part.to(values) for part in (gain, width.unsqueeze(1), roots.unsqueeze(1), axes)]
        if which is not None:
            parts = [part[which] for part in parts]
        gain, width, roots, axes = parts
        known = (values[:, given] - self.mean[given]).nan_to_num(nan=0.0).unsqueeze(1)
        return Conditional(self.mean[diffused] + known @ gain.transpose(-1, -2), width, roots, axes)

    def _regress(self, given: Tensor, diffused: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gain C_ug C_gg^-1, with shape (U, D, g), and R in its axes, for U patterns (U, g + D) of seen variables.

        A given variable that is not seen tells nothing; a diffused one that is not seen is cut off from the others.
        """
        cov, g = self.cov.double(), len(given)
        told, asked = seen[:, :g], seen[:, g:]
        inner = cov[given][:, given] * told.unsqueeze(-1) * told.unsqueeze(-2)
        spread = cov.diagonal()[given]
        inner = inner + torch.diag_embed(RIDGE * spread.clamp(min=RIDGE) + (1 - told))
        cross = cov[given][:, diffused] * told.unsqueeze(-1) * asked.unsqueeze(-2)
        gain = torch.linalg.solve(inner, cross).transpose(-1, -2)
        left = cov[diffused][:, diffused] - gain @ cross
        left = left * asked.unsqueeze(-1) * asked.unsqueeze(-2) + torch.diag_embed(1 - asked)
        roots, axes = torch.linalg.eigh((left + left.transpose(-1, -2)) / 2)
        return gain, roots.clamp(min=NARROWEST**2), axes


def _best_share(rows: Tensor, dim: int) -> float:
    """The share of its diagonal in a covariance with which left-out theta are most likely given x.

    Arguments:
        rows: centred theta and x, of unit spread, with shape (n, d + m).
        dim: the number d of parameters.
    """
    whole, missed = rows.T @ rows, [0.0] * len(SHARES)
    eye = torch.eye(dim, dtype=rows.dtype, device=rows.device)
    for held in (rows[k::FOLDS] for k in range(FOLDS)):
        cov = (whole - held.T @ held) / (len(rows) - len(held))
        roots, axes = torch.linalg.eigh(cov[dim:, dim:])
        cross, told = cov[:dim, dim:] @ axes, held[:, dim:] @ axes
        for k, share in enumerate(SHARES):
            gain = (1 - share) * cross / ((1 - share) * roots.clamp(min=0) + share).clamp(min=RIDGE)
            left = (1 - share) * (cov[:dim, :dim] - gain @ cross.T) + share * eye
            values, frame = torch.linalg.eigh((left + left.T) / 2)
            values = values.clamp(min=NARROWEST**2)
            off = (held[:, :dim] - told @ gain.T) @ frame
            missed[k] += float((off.square() / values).sum() + len(held) * values.log().sum())
    return SHARES[missed.index(min(missed))]
