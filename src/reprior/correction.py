"""Importance correction: adapted samples reweighted towards the exact target with densities of the base.

Samples theta ~ g(theta | x) of any method get weights p(theta | x) r(theta) / g(theta | x). The base's log p is its own
probability-flow density and g is that of the guided denoiser; methods without one (they resample a pool, draw from a
mixture, or average over fresh draws) are refused. What it corrects is the guidance's error; the base's own error stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["importance_correction"]

STEPS = 24


def importance_correction(adapted: Any, theta: Tensor, x: Tensor) -> Tensor:
    """Log weights of adapted samples, with shape (n,).

    Arguments:
        adapted: the adapted posterior that drew them.
        theta: its draws at x, with shape (n, d).
        x: the observation, with shape (1, m).
    """
    posterior = adapted.posterior
    if not adapted.guidance.has_density:
        raise InputError(
            f"method {adapted.method!r} averages over fresh draws in every step, so its samples have no density to "
            "correct with; correct='no' is all it offers"
        )
    generator = torch.Generator().manual_seed(0)
    denoiser = posterior.condition(x)
    try:
        guided = adapted.guidance.guide(denoiser, generator)
    except InputError as error:
        raise InputError(
            f"method {adapted.method!r} has no density of its own to correct with (it resamples a pool, or is a mixture); "
            "correct='no' is all it offers"
        ) from error
    log_p = posterior.density(denoiser, theta, STEPS)
    log_g = posterior.density(guided, theta, STEPS)
    return log_p + adapted.change.log_r(theta) - log_g
