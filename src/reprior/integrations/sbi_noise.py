"""The noise of an sbi estimator, as reprior sees it.

sbi writes theta_t = m(t) theta_0 + sigma(t) eps, t from 0 (data) to 1 (noise). With z = theta_t / m and s = sigma / m
this is z = theta_0 + s eps, and each of sbi's four processes has a closed form both ways. With
B(t) = b0 t + (b1 - b0) t^2 / 2:

| process | s(t) | t(s) | m(s) |
|---|---|---|---|
| VE | low (high / low)^t | log(s / low) / log(high / low) | 1 |
| VP | (e^B - 1)^1/2 | B = log(1 + s^2) | (1 + s^2)^-1/2 |
| sub-VP | 2 sinh(B / 2) | B = 2 asinh(s / 2) | e^(-B/2) |
| flow | (t + e) / (1 - t) | (s - e) / (1 + s) | (1 + e) / (1 + s) |

where e is the small noise that flow matching adds at t = 0. Everything is in double precision: t carries s over five
decades.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["SbiNoise", "noise_of"]

CHECKED = (0.02, 0.1, 0.35, 0.6, 0.9)  # times at which the closed form is compared with the estimator's own
MISMATCH = 1e-3  # relative; sbi computes in single precision


@dataclass(frozen=True)
class SbiNoise:
    """The noise process of an estimator.

    Attributes:
        kind: "ve", "vp", "subvp" or "flow".
        low: sigma_min (VE) or beta_min (VP, sub-VP); not used by flow.
        high: sigma_max (VE) or beta_max (VP, sub-VP); not used by flow.
        extra: the noise e of flow matching at t = 0.
        t_min: the smallest trained time.
        t_max: the largest trained time.
    """

    kind: Literal["ve", "vp", "subvp", "flow"]
    low: float
    high: float
    extra: float
    t_min: float
    t_max: float

    def level(self, t: float) -> float:
        """s(t); infinite for a flow at t = 1."""
        if self.kind == "ve":
            return self.low * (self.high / self.low) ** t
        if self.kind == "flow":
            return math.inf if t >= 1 else (t + self.extra) / (1 - t)
        b = self.low * t + (self.high - self.low) * t**2 / 2
        return math.sqrt(math.expm1(b)) if self.kind == "vp" else 2 * math.sinh(b / 2)

    @property
    def lowest(self) -> float:
        """The smallest trained noise level."""
        return self.level(self.t_min)

    @property
    def highest(self) -> float:
        """The largest trained noise level; infinite for a flow."""
        return self.level(self.t_max)

    def at(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """t(s) and m(s), for noise levels s in double precision, of any shape."""
        if self.kind == "ve":
            return torch.log(s / self.low) / math.log(self.high / self.low), torch.ones_like(s)
        if self.kind == "flow":
            return (s - self.extra) / (1 + s), (1 + self.extra) / (1 + s)
        b = torch.log1p(s**2) if self.kind == "vp" else 2 * torch.asinh(s / 2)
        slope = self.high - self.low
        # The positive root of slope/2 t^2 + low t - b = 0, in the form that does not cancel for small b.
        t = 2 * b / (self.low + torch.sqrt(self.low**2 + 2 * slope * b))
        return t, torch.exp(-b / 2)


def noise_of(estimator: Any) -> SbiNoise:
    """The noise process of an sbi estimator, checked against the estimator's own functions.

    Arguments:
        estimator: a score estimator (VE, VP, sub-VP) or a flow-matching estimator of sbi.
    """
    from sbi.neural_nets.estimators.flowmatching_estimator import FlowMatchingEstimator
    from sbi.neural_nets.estimators.score_estimator import (
        SubVPScoreEstimator,
        VEScoreEstimator,
        VPScoreEstimator,
    )

    times = (float(estimator.t_min), float(estimator.t_max))
    if isinstance(estimator, FlowMatchingEstimator):
        noise = SbiNoise("flow", 0.0, 0.0, float(estimator.noise_scale), *times)
    elif isinstance(estimator, VEScoreEstimator):
        noise = SbiNoise("ve", float(estimator.sigma_min), float(estimator.sigma_max), 0.0, *times)
    elif isinstance(estimator, (VPScoreEstimator, SubVPScoreEstimator)):
        kind = "vp" if isinstance(estimator, VPScoreEstimator) else "subvp"
        noise = SbiNoise(kind, float(estimator.beta_min), float(estimator.beta_max), 0.0, *times)
    else:
        raise InputError(
            f"the estimator is a {type(estimator).__name__}; from_sbi takes those of NPSE (ve, vp, subvp) and FMPE"
        )
    for t in CHECKED:
        own = estimator.std_fn(torch.tensor([t]).double()) / estimator.mean_t_fn(torch.tensor([t]).double())
        if abs(float(own.reshape(-1)[0]) / noise.level(t) - 1) > MISMATCH:
            raise InputError(
                f"{type(estimator).__name__} has a noise schedule of its own (sigma/m is {float(own.reshape(-1)[0]):.4g} at "
                f"t = {t}, and {noise.level(t):.4g} in sbi's {noise.kind} process); from_sbi does not know it"
            )
    return noise
