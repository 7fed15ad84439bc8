"""The Gaussian guess of a Simformer: some variables given others and noisy ones, under a Gaussian fitted to (theta, x).

With mean mu and covariance C of (theta, x), and the variables split into given (g), diffused (u) and absent ones,

    m = mu_u + C_ug C_gg^-1 (v_g - mu_g),      R = C_uu - C_ug C_gg^-1 C_gu

are the linear regression of u on g and the covariance of its residuals, for every split from one fit. With noisy values
z = v + N(0, S), S = diag(s^2), the Gaussian's own denoiser and the standard deviation of its error are

    D_0(z) = m + R P (z - m) = z - S P (z - m),      P = (R + S)^-1,      open^2 = diag(S - S P S)

With few rows per variable, the covariance has spuriously narrow directions. Then C is shrunk towards its diagonal, C ->
(1 - a) C + a diag(C), with the a under which the theta of left-out rows is most likely given their x.

A network that learns (v - D_0) / open has nothing to learn where (theta, x) is jointly Gaussian, for any noise and any
split. For data outside the simulations the regression extrapolates linearly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Conditional", "GaussianGuess"]

RIDGE = (
    1e-4  # added to each variance, as a fraction of it: the regression stays stable where variables repeat each other
)
NARROWEST = 1e-3  # smallest residual standard deviation, in units of the standardised variables
FEW = 20  # rows per variable: with fewer, the shrinkage of the covariance is cross-validated
FOLDS = 5  # of that cross-validation
SHRINKAGES = (0.0, *(10 ** (-4 + k / 4) for k in range(17)))  # values of a that are tried: none, then 1e-4 to 1


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
            fraction = (self.roots * inner) @ self.axes.transpose(-1, -2).square()
            pulled = (off @ self.axes * inner) @ self.axes.transpose(-1, -2)
            size = (inner @ self.axes.transpose(-1, -2).square()).sqrt()
            return pulled, pulled / size, s * fraction.clamp(min=1e-12).sqrt()
        # S^1/2 P S^1/2 = (I + S^-1/2 R S^-1/2)^-1 is of order one at any noise.
        wide = s.double()
        half = (self.axes.double() * self.roots.double().sqrt()).unsqueeze(1) / wide.unsqueeze(-1)
        eye = torch.eye(half.shape[-1], dtype=half.dtype, device=half.device)
        scaled = torch.linalg.inv(eye + half @ half.transpose(-1, -2))
        kept = scaled.diagonal(dim1=-2, dim2=-1)
        open_sd = (s * (1 - kept).clamp(min=1e-12).sqrt()).to(off)
        size = (kept.clamp(min=1e-12).sqrt() / wide).to(off)
        precision = (scaled / wide.unsqueeze(-1) / wide.unsqueeze(-2)).to(off)
        if precision.shape[1] == 1:
            pulled = off @ precision.squeeze(1)
        else:
            pulled = (off.unsqueeze(-2) @ precision).squeeze(-2)
        return pulled, pulled / size, open_sd


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
        """Fits mean and covariance, each entry to the rows that have it.

        Arguments:
            values: theta and x, with shape (n, d + m); NaN where missing.
            dim: the number d of parameters, to shrink the covariance of few rows; 0 leaves it as it is.
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
            a = _best_shrinkage(centred / cov.diagonal().clamp(min=RIDGE).sqrt(), dim)
            cov = (1 - a) * cov + a * torch.diag(cov.diagonal())
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

        A given variable that is missing has no weight; a diffused one that is missing is uncorrelated with the others.
        """
        cov, g = self.cov.double(), len(given)
        seen_given, seen_diffused = seen[:, :g], seen[:, g:]
        inner = cov[given][:, given] * seen_given.unsqueeze(-1) * seen_given.unsqueeze(-2)
        spread = cov.diagonal()[given]
        inner = inner + torch.diag_embed(RIDGE * spread.clamp(min=RIDGE) + (1 - seen_given))
        cross = cov[given][:, diffused] * seen_given.unsqueeze(-1) * seen_diffused.unsqueeze(-2)
        gain = torch.linalg.solve(inner, cross).transpose(-1, -2)
        rest = cov[diffused][:, diffused] - gain @ cross  # R
        rest = rest * seen_diffused.unsqueeze(-1) * seen_diffused.unsqueeze(-2) + torch.diag_embed(1 - seen_diffused)
        roots, axes = torch.linalg.eigh((rest + rest.transpose(-1, -2)) / 2)
        return gain, roots.clamp(min=NARROWEST**2), axes


def _best_shrinkage(rows: Tensor, dim: int) -> float:
    """The shrinkage a of the covariance under which the theta of left-out rows are most likely given their x.

    Arguments:
        rows: centred theta and x, of unit spread, with shape (n, d + m).
        dim: the number d of parameters.
    """
    whole, losses = rows.T @ rows, [0.0] * len(SHRINKAGES)  # -2 log-likelihood, up to a constant
    eye = torch.eye(dim, dtype=rows.dtype, device=rows.device)
    for held in (rows[k::FOLDS] for k in range(FOLDS)):
        cov = (whole - held.T @ held) / (len(rows) - len(held))
        roots, axes = torch.linalg.eigh(cov[dim:, dim:])
        cross, scores = cov[:dim, dim:] @ axes, held[:, dim:] @ axes
        for k, a in enumerate(SHRINKAGES):
            gain = (1 - a) * cross / ((1 - a) * roots.clamp(min=0) + a).clamp(min=RIDGE)
            rest = (1 - a) * (cov[:dim, :dim] - gain @ cross.T) + a * eye
            values, frame = torch.linalg.eigh((rest + rest.T) / 2)
            values = values.clamp(min=NARROWEST**2)
            off = (held[:, :dim] - scores @ gain.T) @ frame
            losses[k] += float((off.square() / values).sum() + len(held) * values.log().sum())
    return SHRINKAGES[losses.index(min(losses))]
