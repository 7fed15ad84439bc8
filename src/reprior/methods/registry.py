"""Every method by name, with its settings."""

from __future__ import annotations

import os
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reprior.change import PriorChange
from reprior.errors import InputError
from reprior_bench.methods.analytic import AnalyticGuidance, AnalyticSettings
from reprior.methods.plug_in import AnchorGuidance
from reprior.methods.auto import choose
from reprior.methods.learned.guidance import BEST, PAPER, RatioSettings
from reprior.methods.method import Guidance, NoGuidance
from reprior.methods.sir import SIRGuidance, SIRSettings
from reprior_bench.methods.priorguide import (
    MonteCarloSettings,
    PriorGuide,
    PriorGuideMonteCarlo,
    PriorGuideSettings,
    fit_mixture,
)
from reprior.methods.rejuvenate import RejuvenateGuidance, RejuvenateSettings
from reprior.methods.transport import TransportGuidance
from reprior_bench.methods.wsm import learn_correction
from reprior.posterior import Posterior
from reprior.methods.learned.losses import ESTIMATORS
from reprior.methods.learned.training import learn_ratio

__all__ = ["METHODS", "PRESETS", "build_guidance"]

# name: (kind of settings, what it does)
METHODS: dict[str, tuple[type | None, str]] = {
    "auto": (None, "chooses between transport and rejuvenate, and says why"),
    "transport": (None, "exact for Gaussian changes: the base asked at another point and noise"),
    "rejuvenate": (RejuvenateSettings, "resample a pool by r, noise it, denoise it with guidance"),
    "anchor": (None, "log r at the denoised mean, as guidance"),
    "nre": (RatioSettings, "learned log ratio, logistic loss"),
    "kliep": (RatioSettings, "learned log ratio, Kullback-Leibler"),
    "pearson": (RatioSettings, "learned log ratio, Pearson chi-square"),
    "reverse_kl": (RatioSettings, "learned log ratio, reverse Kullback-Leibler"),
    "hellinger": (RatioSettings, "learned log ratio, Hellinger"),
    "wsm": (RatioSettings, "learned score correction, r-weighted score matching"),
    "priorguide": (PriorGuideSettings, "mixture fit of r, Gaussian reverse kernel"),
    "priorguide_mc": (MonteCarloSettings, "Monte Carlo average of r, Gaussian reverse kernel"),
    "sir": (SIRSettings, "importance resampling of a pool"),
    "analytic": (AnalyticSettings, "exact guidance for x = theta + Gaussian noise"),
    "none": (None, "no change"),
}
PRESETS: dict[str, RatioSettings] = {"best": BEST, "paper": PAPER}


def settings_of(method: str, settings: Any) -> Any:
    """The settings of a method: the given ones, a preset by name, or its defaults."""
    kind = METHODS[method][0]
    if kind is None:
        if settings is not None and not (isinstance(settings, str) and settings in PRESETS):
            raise InputError(f"method {method!r} takes no settings; got {settings!r}")
        return None
    if isinstance(settings, str):
        if settings not in PRESETS:
            raise InputError(f"settings {settings!r} are unknown; allowed: {', '.join(PRESETS)}, or a {kind.__name__}")
        return PRESETS[settings] if kind is RatioSettings else kind()
    if settings is None:
        return BEST if kind is RatioSettings else kind()
    if not is_dataclass(settings) or not isinstance(settings, kind):
        raise InputError(f"method {method!r} takes {kind.__name__}; got {type(settings).__name__}")
    return settings


def build_guidance(
    method: str,
    posterior: Posterior,
    change: PriorChange,
    settings: Any,
    seed: int,
    observed: Tensor | None = None,
    progress: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> tuple[Guidance, str]:
    """The guidance of a method, trained where it needs training, and one sentence on the choice."""
    if method == "auto":
        settings_of(method, settings)
        method, why = choose(posterior, change, seed, _mask(observed))
        if method == "transport":  # some observation may still be too wide for it
            return TransportGuidance(
                change, posterior.base.noise, RejuvenateGuidance(change, posterior.base.noise)
            ), why
        chosen = settings if METHODS[method][0] is RatioSettings else None
        return build_guidance(method, posterior, change, chosen, seed, observed, progress, cache)[0], why
    why = "asked for"
    chosen = settings_of(method, settings)
    noise = posterior.base.noise
    if method in ESTIMATORS:
        chosen = _fit_to_base(chosen, posterior)
        return learn_ratio(posterior, change, method, chosen, seed, progress, _mask(observed), cache=cache), why
    if method == "wsm":
        chosen = _fit_to_base(chosen, posterior)
        return learn_correction(posterior, change, chosen, seed, progress, _mask(observed), cache=cache), why
    if method == "priorguide":
        return PriorGuide(change, chosen, fit_mixture(change, chosen, seed)), why
    if method == "rejuvenate":
        learned = None
        if chosen.below == "learned":  # on the base itself: what transport takes over has a largest noise, and s0 none
            training = _fit_to_base(replace(BEST, under="base"), posterior)
            learned = learn_ratio(posterior, change, "nre", training, seed, progress, _mask(observed), cache=cache)
        return RejuvenateGuidance(change, noise, chosen, learned), why
    simple = {
        "none": lambda: NoGuidance(),
        "transport": lambda: TransportGuidance(change, noise),
        "anchor": lambda: AnchorGuidance(change),
        "priorguide_mc": lambda: PriorGuideMonteCarlo(change, chosen),
        "sir": lambda: SIRGuidance(change, chosen),
        "analytic": lambda: AnalyticGuidance(posterior, change, chosen),
    }
    return simple[method](), why


def _fit_to_base(settings: RatioSettings, posterior: Posterior) -> RatioSettings:
    # A small set of stored simulations has fewer observations to draw at.
    stored = 0 if posterior.simulations is None else len(posterior.simulations)
    return replace(settings, observations=max(2, min(settings.observations, stored))) if stored else settings


def _mask(observed: Tensor | None) -> Tensor | None:
    return None if observed is None else torch.as_tensor(observed, dtype=torch.bool)
