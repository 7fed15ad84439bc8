"""Proposals for the SLCP posterior: its normalised likelihood, and a fit to the posterior itself.

**From the likelihood.** With C C' = S, the scatter matrix, and U U' ~ Wishart(2, I), Sigma = L L' with L = C
U^-T follows the inverse Wishart, and sinh theta_5 = L_21 / L_22 because rho / sqrt(1 - rho^2) does. Its
density is called l(theta).

**From a mixture**, 0.2 l + 0.8 t. The four images of theta share one point psi = (log|theta_3|, log|theta_4|,
+-theta_5). t draws psi from a mixture of Student-t distributions fitted to the posterior; then (theta_1,
theta_2) given Sigma as if the prior of the mean were Gaussian with its own mean m and covariance C,

    N(m', V'),   V' = Sigma/4 M^-1 C,   m' = Sigma/4 M^-1 m + C M^-1 (mean x),   M = C + Sigma/4;

then one of the four images, by the prior. The weights prior x likelihood / (0.2 l + 0.8 t) are never larger
than 5 Z prior(theta), Z being the integral of the likelihood.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior import priors
from reprior.errors import InputError
from reprior_bench.tasks.base import log_density
from reprior_bench.tasks.rejection import Proposal, effective_size
from reprior_bench.tasks.student import fit_student

__all__ = ["IMAGES", "from_likelihood", "from_mixture", "log_evidence", "log_likelihood"]

IMAGES = torch.tensor([[1, 1, 1, 1, 1], [1, 1, -1, -1, 1], [1, 1, -1, 1, -1], [1, 1, 1, -1, -1]], dtype=torch.float64)
"""The symmetry group of the likelihood, as signs of theta, with shape (4, 5)."""


def log_likelihood(theta: Tensor, x: Tensor) -> Tensor:
    """log p(x | theta), with shape (n,), for theta (n, 5) and x (8,); -inf where a scale is zero."""
    points = x.reshape(4, 2)
    # Whitened residuals; 1 - tanh^2 = 1/cosh^2 keeps its digits when rho is close to one.
    first = (points[:, 0] - theta[:, 0:1]) / theta[:, 2:3]
    second = (points[:, 1] - theta[:, 1:2]) / theta[:, 3:4]
    rho, cosh = torch.tanh(theta[:, 4:5]), torch.cosh(theta[:, 4:5])
    square = (first**2 + ((second - rho * first) * cosh) ** 2).sum(-1)
    log_det = 2 * torch.log((theta[:, 2] * theta[:, 3]).abs() / cosh[:, 0])
    value = -0.5 * square - 2 * log_det - 4 * np.log(2 * np.pi)
    return value.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)  # a scale of zero


def from_likelihood(x: Tensor, prior: Any) -> Proposal:
    """Proposes from the normalised likelihood of x (8,), with weights prior(theta)."""
    points = x.reshape(4, 2)
    mean = points.mean(0)
    c, failed = torch.linalg.cholesky_ex((points - mean).T @ (points - mean))
    if int(failed) != 0 or not bool(c[1, 1] > 0):
        raise InputError("slcp: the four points lie on one line; their posterior has no density")

    def propose(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        # Sigma = L L', L = C U^-T, with U U' ~ Wishart(2, I), by Bartlett's decomposition (upper factor):
        # U_22^2 ~ chi2(2), U_11^2 ~ chi2(1), U_12 ~ N(0, 1).
        z = torch.from_numpy(rng.standard_normal((6, count)))
        u11, u12, u22 = z[0].abs(), z[1], torch.sqrt(z[2] ** 2 + z[3] ** 2)
        l11, l22 = c[0, 0] / u11, c[1, 1] / u22
        l21 = (c[1, 0] - c[1, 1] * u12 / u22) / u11
        first = mean[0] + 0.5 * l11 * z[4]
        second = mean[1] + 0.5 * (l21 * z[4] + l22 * z[5])
        # rho / sqrt(1 - rho^2) = L_21 / L_22 = sinh theta_5
        theta = torch.stack([first, second, l11, torch.hypot(l21, l22), torch.asinh(l21 / l22)], dim=-1)
        theta = theta * IMAGES[torch.from_numpy(rng.integers(4, size=count))]
        return theta, log_density(prior, theta)

    return propose


def from_mixture(x: Tensor, prior: Any, broad: Proposal, rng: np.random.Generator) -> Proposal:
    """Proposes from 0.2 l + 0.8 t.

    Arguments:
        x: one observation, with shape (8,).
        broad: `from_likelihood` for the same x and prior.
    """
    pool = priors.sample(prior, 16_384, int(rng.integers(2**31))).double()
    mean = _MeanGivenSigma(x, pool)

    def log_f(psi: Tensor) -> Tensor:
        """An unbiased estimate of the density of psi, by one draw of the mean."""
        theta, log_c = mean.draw(psi, rng)
        return log_likelihood(theta, x) + _log_images(prior, theta).logsumexp(-1) + psi[:, 0] + psi[:, 1] - log_c

    start, _ = broad(16_384, rng)
    starts = [(start, _log_images(prior, start).logsumexp(-1)), (pool, log_likelihood(pool, x))]
    start, log_w = max(starts, key=lambda drawn: effective_size(drawn[1]))
    student = fit_student(log_f, _fold(start), log_w, rng)
    evidence = log_evidence(x)

    def propose(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        n_broad = int(rng.binomial(count, 0.2))
        wide, _ = broad(n_broad, rng)
        narrow, _ = mean.draw(student.sample(count - n_broad, rng), rng)
        # The image: the largest of log prior + Gumbel noise.
        noise = torch.from_numpy(rng.gumbel(size=(count - n_broad, 4)))
        narrow = narrow * IMAGES[(_log_images(prior, narrow) + noise).argmax(-1)]
        theta = torch.cat([wide, narrow])
        psi = _fold(theta)
        log_prior, log_lik = log_density(prior, theta), log_likelihood(theta, x)
        log_image = log_prior - _log_images(prior, theta).logsumexp(-1)
        log_t = student.log_prob(psi) - psi[:, 0] - psi[:, 1] + mean.log_prob(theta) + log_image
        log_g = torch.logaddexp(np.log(0.2) + log_lik - evidence, np.log(0.8) + log_t)
        return theta, torch.where(log_prior > -torch.inf, log_lik + log_prior - log_g, -torch.inf)

    return propose


def log_evidence(x: Tensor) -> Tensor:
    """log Z, the logarithm of the integral of the likelihood over all theta.

    The integral over mu leaves (2 pi)^-3 |Sigma|^-3/2 exp(-tr(Sigma^-1 S)/2) / 4; d theta = |Sigma|^-1 d
    Sigma / 4, four times for the four images, gives the inverse-Wishart constant 2^2 Gamma_2(1) / |S| = 4 pi
    / |S|.
    """
    points = x.reshape(4, 2)
    centred = points - points.mean(0)
    return np.log(np.pi) - 3 * np.log(2 * np.pi) - torch.logdet(centred.T @ centred)


class _MeanGivenSigma:
    """(theta_1, theta_2) given Sigma, with a Gaussian of the same moments in place of the prior of the mean.

    Arguments:
        x: one observation, with shape (8,).
        pool: draws of the prior, with shape (n, 5); the variances are taken a tenth larger.
    """

    def __init__(self, x: Tensor, pool: Tensor):
        self.observed = x.reshape(4, 2).mean(0)
        self.prior_mean = pool[:, :2].mean(0)
        self.prior_covariance = 1.1 * torch.cov(pool[:, :2].T)

    def moments(self, psi: Tensor) -> tuple[Tensor, Tensor]:
        """m' (n, 2) and the Cholesky factor of V' (n, 2, 2)."""
        s, rho = psi[:, :2].exp(), torch.tanh(psi[:, 2])
        cross = rho * s[:, 0] * s[:, 1]
        quarter = torch.stack([s[:, 0] ** 2, cross, cross, s[:, 1] ** 2], dim=-1).reshape(-1, 2, 2) / 4
        inverse = torch.linalg.inv(self.prior_covariance + quarter)
        centre = quarter @ inverse @ self.prior_mean + self.prior_covariance @ inverse @ self.observed
        v = quarter @ inverse @ self.prior_covariance
        l11 = v[:, 0, 0].sqrt()
        l21 = v[:, 1, 0] / l11
        # det V' = det(Sigma/4) det(M^-1) det(C): the difference V_22 - L_21^2 would lose its digits.
        det = (s[:, 0] * s[:, 1] / torch.cosh(psi[:, 2]) / 4) ** 2 * torch.linalg.det(inverse)
        l22 = (det * torch.linalg.det(self.prior_covariance)).sqrt() / l11
        factor = torch.stack([l11, torch.zeros_like(l11), l21, l22], dim=-1).reshape(-1, 2, 2)
        return centre, factor

    def draw(self, psi: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """theta (n, 5), the image with positive scales, and the log-density of its mean."""
        centre, factor = self.moments(psi)
        z = torch.from_numpy(rng.standard_normal((psi.shape[0], 2)))
        drawn = centre + (factor @ z[..., None]).squeeze(-1)
        return torch.cat([drawn, psi[:, :2].exp(), psi[:, 2:]], dim=-1), _log_normal(z, factor)

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of (theta_1, theta_2) given the rest of theta (n, 5)."""
        centre, factor = self.moments(_fold(theta))
        first = (theta[:, 0] - centre[:, 0]) / factor[:, 0, 0]
        second = (theta[:, 1] - centre[:, 1] - factor[:, 1, 0] * first) / factor[:, 1, 1]
        return _log_normal(torch.stack([first, second], dim=-1), factor)


def _log_normal(z: Tensor, factor: Tensor) -> Tensor:
    log_det = (factor[:, 0, 0] * factor[:, 1, 1]).log()
    return -0.5 * (z**2).sum(-1) - log_det - np.log(2 * np.pi)


def _fold(theta: Tensor) -> Tensor:
    """psi, with shape (n, 3): the same for the four images of theta."""
    turned = theta[:, 4] * torch.sign(theta[:, 2] * theta[:, 3])
    return torch.stack([theta[:, 2].abs().log(), theta[:, 3].abs().log(), turned], dim=-1)


def _log_images(prior: Any, theta: Tensor) -> Tensor:
    """log prior of the four images of theta, with shape (n, 4)."""
    return log_density(prior, theta[:, None, :] * IMAGES)
