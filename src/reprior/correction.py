"""Importance correction: adapted samples reweighted towards the exact target with densities of the base.

Samples theta ~ g(theta | x) get weights p(theta | x) r(theta) / g(theta | x). p(theta | x) is the probability-flow density of
the base, and g that of the guided denoiser that drew the samples. Methods without such a density are refused: those that
resample a pool, draw from a mixture, or average over fresh draws. So are samplers that add noise between steps, because g
is the density of the ODE alone. The weights correct the error of the guidance, not that of the base.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.methods.method import Method

if TYPE_CHECKING:
    from reprior.adapted import AdaptedPosterior

__all__ = ["Frozen", "freeze", "importance_correction"]

STEPS = 24  # Runge-Kutta steps of a log-density, which keep its error below one per cent


class Frozen(Method):
    """A method whose denoiser is made once and kept, so that all its draws at one x follow one distribution.

    Arguments:
        inner: the method; draws that it needs to estimate the posterior's width are made once.
    """

    def __init__(self, inner: Method):
        self.problem, self.settings, self.inner = inner.problem, inner.settings, inner
        self.corrections, self.why = inner.corrections, inner.why
        self.name = inner.name  # pyright: ignore[reportAttributeAccessIssue]
        self.guided: Denoiser | None = None

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        if self.guided is None:
            try:
                self.guided = self.inner.guide(denoiser, generator)
            except InputError as error:
                raise _refusal(f"method {self.name!r} has no density of its own to correct with: {error}") from error
        return self.guided


def freeze(adapted: AdaptedPosterior, sampler: Sampler) -> AdaptedPosterior:
    """The adapted posterior with its denoiser frozen, for draws at one x; refuses methods and samplers without density.

    Arguments:
        adapted: the adapted posterior.
        sampler: the sampler that will draw.
    """
    method = adapted.method
    if not method.has_density:
        raise _refusal(
            f"method {method.name!r} averages over fresh draws in every step, so its samples have no density to correct with"
        )
    noisy = "noise in every step" if sampler.kind == "euler_maruyama" else f"eta={sampler.eta}" if sampler.eta else ""
    corrections = sampler.corrections or method.corrections
    if corrections:
        noisy = f"{corrections} Langevin corrections after each step"
    if noisy:
        raise _refusal(
            f"method {method.name!r} is drawn with {noisy}, so its samples do not follow the density of the guided ODE"
        )
    return replace(adapted, method=Frozen(method))


def _refusal(why: str) -> InputError:
    return InputError(f"{why}; correct='no' is all that is offered here")


def importance_correction(adapted: AdaptedPosterior, theta: Tensor, x: Tensor) -> Tensor:
    """Log weights of adapted samples, with shape (n,).

    Arguments:
        adapted: the adapted posterior that drew them, from `freeze`.
        theta: its draws at x, with shape (n, d).
        x: the observation, with shape (1, m).
    """
    posterior = adapted.posterior
    denoiser = posterior.condition(x)
    guided = adapted.method.guide(denoiser, torch.Generator().manual_seed(0))  # the one that drew theta
    log_p = posterior.density(denoiser, theta, STEPS)
    log_g = posterior.density(guided, theta, STEPS)
    return (log_p + adapted.change.log_r(theta) - log_g).detach()
