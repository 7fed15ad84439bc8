"""A mixture of Student-t distributions fitted to a density by adaptive importance sampling.

To propose from a density f known up to a constant, start from any draws and repeat: weigh the draws by
(f/g)^gamma with gamma in (0, 1] as large as an effective sample size of one twentieth of them allows; take
the weighted mean and covariance as centre and scale of a multivariate t with 5 degrees of freedom, g; draw
from g. Two rounds after gamma has reached one, resample the draws by their weights and replace the single t
by a mixture of eight, fitted by EM. The fit decides only how often a proposal is accepted, never what is
accepted.

References:
    Cappe et al. (2008), Adaptive importance sampling in general mixture classes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lgamma, log, pi
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from reprior import priors
from reprior.errors import InputError
from reprior_bench.tasks.base import log_density
from reprior_bench.tasks.rejection import Proposal

__all__ = ["StudentMixture", "fit_student", "student_proposal"]

_DOF = 5.0
_ROUNDS = 60
_PARTS = 8


class StudentMixture:
    """A mixture of K multivariate t with 5 degrees of freedom.

    Arguments:
        weights: the weights of the parts, with shape (K,).
        mean: their centres, with shape (K, k).
        scale: their scale matrices, with shape (K, k, k).
    """

    def __init__(self, weights: Tensor, mean: Tensor, scale: Tensor):
        self.weights, self.mean, self.factor = weights, mean, torch.linalg.cholesky(scale)
        k = mean.shape[1]
        log_det = torch.diagonal(self.factor, dim1=-2, dim2=-1).log().sum(-1)
        constant = lgamma((_DOF + k) / 2) - lgamma(_DOF / 2) - k / 2 * log(_DOF * pi)
        self.constant = weights.log() + constant - log_det

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """phi, with shape (n, k)."""
        z = rng.standard_normal((n, self.mean.shape[1]))
        z /= np.sqrt(rng.chisquare(_DOF, (n, 1)) / _DOF)
        part = rng.choice(len(self.weights), size=n, p=(self.weights / self.weights.sum()).numpy())
        return self.mean[part] + (self.factor[part] @ torch.from_numpy(z)[..., None]).squeeze(-1)

    def log_prob(self, phi: Tensor) -> Tensor:
        """The log-density at phi (n, k), with shape (n,)."""
        parts = []
        for constant, mean, factor in zip(self.constant, self.mean, self.factor, strict=True):
            z = torch.linalg.solve_triangular(factor, (phi - mean).T, upper=False)
            parts.append(constant - (_DOF + phi.shape[1]) / 2 * torch.log1p((z**2).sum(0) / _DOF))
        return torch.logsumexp(torch.stack(parts), dim=0)


def student_proposal(prior: Any, log_likelihood: Callable[[Tensor], Tensor], rng: np.random.Generator) -> Proposal:
    """Proposes from 0.2 prior + 0.8 t, with t fitted to the posterior; weights are at most 5 x likelihood.

    Arguments:
        log_likelihood: from theta (n, d) to (n,); not asked where the prior is below exp(-60) of its largest
        value.
    """
    start = priors.sample(prior, 16_384, int(rng.integers(2**31))).double()
    floor = float(log_density(prior, start).max()) - 60

    def log_f(theta: Tensor) -> Tensor:
        value = log_density(prior, theta)
        asked = value > floor
        value[~asked] = -torch.inf
        value[asked] += log_likelihood(theta[asked])
        return value

    student = fit_student(log_f, start, log_likelihood(start), rng)

    def propose(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        broad = int(rng.binomial(count, 0.2))
        wide = priors.sample(prior, broad, int(rng.integers(2**31))).double()
        theta = torch.cat([wide, student.sample(count - broad, rng)])
        log_g = torch.logaddexp(log(0.2) + log_density(prior, theta), log(0.8) + student.log_prob(theta))
        return theta, log_f(theta) - log_g

    return propose


def fit_student(
    log_f: Callable[[Tensor], Tensor], phi: Tensor, log_w: Tensor, rng: np.random.Generator
) -> StudentMixture:
    """A mixture of Student-t distributions close to f.

    Arguments:
        log_f: the log-density up to a constant, from (n, k) to (n,).
        phi: first draws, with shape (n, k).
        log_w: log f/g of the first draws, up to a constant, with shape (n,).
    """
    finished = 0
    for _ in range(_ROUNDS):
        if float(log_w.max()) == -np.inf:
            break
        gamma = _temper(log_w, phi.shape[0] / 20)
        weights = torch.softmax(gamma * log_w, dim=0)
        finished += gamma == 1.0
        if finished == 3:
            return _mixture(phi, weights, rng)
        mean = weights @ phi
        covariance = (weights[:, None] * (phi - mean)).T @ (phi - mean)
        ridge = 1e-10 * torch.diagonal(covariance).mean() * torch.eye(phi.shape[1], dtype=phi.dtype)
        student = StudentMixture(torch.ones(1, dtype=phi.dtype), mean[None], (covariance + ridge)[None])
        phi = student.sample(phi.shape[0], rng)
        log_w = log_f(phi) - student.log_prob(phi)
    raise InputError("the reference found no proposal: the prior and the likelihood of this observation hardly overlap")


def _mixture(phi: Tensor, weights: Tensor, rng: np.random.Generator) -> StudentMixture:
    drawn = rng.choice(phi.shape[0], size=4096, p=(weights / weights.sum()).numpy())
    unit = phi[drawn].std(0)
    fit = GaussianMixture(_PARTS, reg_covar=1e-3, random_state=0).fit((phi[drawn] / unit).numpy())
    scale = torch.from_numpy(fit.covariances_) * unit[:, None] * unit
    return StudentMixture(torch.from_numpy(fit.weights_), torch.from_numpy(fit.means_) * unit, scale)


def _temper(log_w: Tensor, least: float) -> float:
    """The largest gamma in (0, 1] that leaves exp(gamma log_w) an effective sample size `least`."""

    def size(gamma: float) -> float:
        weights = torch.softmax(gamma * log_w, dim=0)
        return float(1 / (weights**2).sum())

    if size(1.0) >= least:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if size(middle) >= least else (low, middle)
    return max(low, 1e-9)
