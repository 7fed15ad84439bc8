"""The eight parameters of a transit, their limits and their prior.

theta = (k, a, inc, P, t0, u1, u2, sigma): radius ratio, a/Rs, inclination (degrees), period (days), mid-time
offset (days), the two coefficients of quadratic limb darkening, noise per point. The paper's reference prior
is a product of Gaussians, `gaussian_prior`. Some of its draws are no star and planet, so `TransitPrior`
restricts it:

| draw | part of the Gaussian's draws | what is done |
|---|---|---|
| k <= 0 or k >= 1 | 0.62 % | excluded: the density is cut there and normalised |
| a <= 1 (the orbit lies inside the star) | 0.13 % | excluded |
| P <= 0, sigma <= 0 | 0.04 % | excluded |
| (u1, u2) outside u1 >= 0, u1 + 2 u2 >= 0, u1 + u2 <= 1 | 0.001 % | excluded: dark or bright-edged disc |
| inc > 90 | 10.6 % | the mirror image of 180 - inc, with the same light curve: folded |
| a cos(inc) > 1 - k: grazing, or > 1 + k: no transit | 6 %, 6 % | kept: valid, shallow or flat light curves |

Folding: the flux depends on |cos inc|, so with g the Gaussian density, inc <= 90 has the density g(inc) +
g(180 - inc). A posterior under the Gaussian, its samples folded by `fold_inclination`, is the posterior
under the folded prior. The Gaussian has no edge at 90 degrees, which suits a diffusion model
(`TransitPrior(mirrored=True)`); the folded one is easier to read.

Inside the limits `gaussian_prior` and `TransitPrior(mirrored=True)` differ by a constant, so a ratio q/p
does not see which is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from reprior.errors import InputError

__all__ = [
    "MEAN",
    "PARAMETERS",
    "STD",
    "TransitPrior",
    "fold_inclination",
    "gaussian_prior",
    "impact_parameter",
    "physical",
]

PARAMETERS = ("k", "a", "inc", "P", "t0", "u1", "u2", "sigma")
MEAN = (0.10, 10.0, 87.5, 3.6, 0.0, 0.35, 0.18, 0.001)
STD = (0.04, 3.0, 2.0, 0.8, 0.05, 0.08, 0.06, 0.0003)
# Lower limits of the parameters that have one; k also has to stay below 1.
LOWEST = {0: 0.0, 1: 1.0, 3: 0.0, 7: 0.0}
INC = 2


def gaussian_prior() -> td.Independent:
    """The paper's reference prior: independent Gaussians, with no limits."""
    return td.Independent(td.Normal(torch.tensor(MEAN), torch.tensor(STD)), 1)


def physical(theta: Tensor) -> Tensor:
    """True where theta, with shape (*, 8), describes a star and a planet; inc lies in (0, 180) degrees.

    Returns: a mask with shape (*).
    """
    _check(theta)
    k, a, inc, period, t0, u1, u2, sigma = theta.unbind(-1)
    disc = (u1 >= 0) & (u1 + 2 * u2 >= 0) & (u1 + u2 <= 1)
    orbit = (a > 1) & (inc > 0) & (inc < 180) & (period > 0) & torch.isfinite(a + period + t0)
    return (k > 0) & (k < 1) & orbit & disc & (sigma > 0) & torch.isfinite(sigma)


def fold_inclination(theta: Tensor) -> Tensor:
    """theta, with shape (*, 8), with inclinations above 90 degrees replaced by 180 - inc."""
    _check(theta)
    folded = theta.clone()
    folded[..., INC] = 90 - (90 - theta[..., INC]).abs()
    return folded


def impact_parameter(theta: Tensor) -> Tensor:
    """b = a |cos inc|, with shape (*): a full transit where b < 1 - k, grazing below 1 + k, none above."""
    _check(theta)
    return theta[..., 1] * torch.deg2rad(theta[..., INC]).cos().abs()


class _Limits(constraints.Constraint):
    event_dim = 1

    def __init__(self, mirrored: bool):
        self.mirrored = mirrored

    def check(self, value: Tensor) -> Tensor:
        inside = physical(value)
        return inside if self.mirrored else inside & (value[..., INC] <= 90)


class TransitPrior(td.Distribution):
    """The reference prior within the physical limits; see the table above.

    Arguments:
        mirrored: False: inclinations are folded to at most 90 degrees. True: inc keeps its Gaussian, on both
            sides of 90 degrees; fold the posterior samples with `fold_inclination`.
    """

    def __init__(self, mirrored: bool = False):
        self.mirrored = mirrored
        self._gaussian = gaussian_prior()
        self._mass, self._mean, self._variance = _moments(mirrored)
        super().__init__(event_shape=torch.Size((len(PARAMETERS),)), validate_args=False)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        return {}

    @property
    def support(self) -> constraints.Constraint:
        return _Limits(self.mirrored)

    @property
    def mean(self) -> Tensor:
        return torch.tensor(self._mean, dtype=torch.float32)

    @property
    def variance(self) -> Tensor:
        return torch.tensor(self._variance, dtype=torch.float32)

    def expand(self, batch_shape: Any, _instance: Any = None) -> TransitPrior:
        raise NotImplementedError("TransitPrior has no batch of parameters to expand")

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """theta, with shape (*sample_shape, 8). About one draw in 130 is unphysical and drawn again."""
        shape = torch.Size(sample_shape)
        flat = self._gaussian.sample(torch.Size((shape.numel(),)))
        bad = ~physical(flat)
        while bool(bad.any()):
            flat[bad] = self._gaussian.sample(torch.Size((int(bad.sum()),)))
            bad = ~physical(flat)
        flat = flat if self.mirrored else fold_inclination(flat)
        return flat.reshape(*shape, len(PARAMETERS))

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(theta), -inf outside the limits, with shape (*), for theta with shape (*, 8)."""
        _check(value)
        base = td.Normal(value.new_tensor(MEAN), value.new_tensor(STD), validate_args=False)
        terms = base.log_prob(value)
        if not self.mirrored:
            mirror = value.clone()
            mirror[..., INC] = 180 - value[..., INC]
            terms = torch.where(
                torch.arange(len(PARAMETERS), device=value.device) == INC,
                torch.logaddexp(terms, base.log_prob(mirror)),
                terms,
            )
        log_p = terms.sum(-1) - float(np.log(self._mass))
        return torch.where(self.support.check(value), log_p, -torch.inf)


def _check(theta: Tensor) -> None:
    if theta.ndim < 1 or theta.shape[-1] != len(PARAMETERS):
        raise InputError(f"theta must have shape (*, 8) for {', '.join(PARAMETERS)}; got {tuple(theta.shape)}")


def _moments(mirrored: bool) -> tuple[float, list[float], list[float]]:
    """The Gaussian's mass inside the limits, and the means and variances there."""
    mean, variance, mass = list(MEAN), [s**2 for s in STD], 1.0
    for i, low in LOWEST.items():
        z = (low - MEAN[i]) / STD[i]
        mass *= float(stats.norm.sf(z))
        m, v = stats.truncnorm.stats(z, np.inf, MEAN[i], STD[i], moments="mv")
        mean[i], variance[i] = float(m), float(v)
    if not mirrored:
        m, v = stats.foldnorm.stats((90 - MEAN[INC]) / STD[INC], 0, STD[INC], moments="mv")
        mean[INC], variance[INC] = 90 - float(m), float(v)
    # The triangle of the limb-darkening coefficients couples u1 and u2: a sum on a grid of 8 sd each side.
    z = np.linspace(-8, 8, 801)
    u1, u2 = np.meshgrid(MEAN[5] + STD[5] * z, MEAN[6] + STD[6] * z, indexing="ij")
    weight = np.outer(stats.norm.pdf(z), stats.norm.pdf(z)) * (z[1] - z[0]) ** 2
    weight = weight * ((u1 >= 0) & (u1 + 2 * u2 >= 0) & (u1 + u2 <= 1))
    total = float(weight.sum())
    for i, u in ((5, u1), (6, u2)):
        mean[i] = float((weight * u).sum() / total)
        variance[i] = float((weight * (u - mean[i]) ** 2).sum() / total)
    return mass * total, mean, variance
