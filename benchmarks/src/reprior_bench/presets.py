"""What a preset runs: its methods, and the settings of each.

`paper` is the paper's base, sampler and training of every method as its appendix states them; where it is silent, or two
cores are too few:

- Training steps of the base: it states at least 5,000 and at most 50,000. 5,000 are taken, the number that two cores
  can do (12 tokens: 0.3 to 0.6 s a step).
- Series: neighbouring points share a token, 5 in OUP and 20 in Turin (7 and 10 tokens in place of 27 and 105, whose
  steps take 0.9 s and 3.4 s or more). This is not the paper's network.
- Ratio networks: matrix products of hidden layers in bfloat16 while training, which makes a step 1.7 times as fast; the paper
  states no precision.
- WSM: four noisy copies of the training set, with the base's means there, in place of fresh noise in each step. Learned
  networks keep the weights of their lowest held-out loss.
- SIR: a pool of as many draws as samples are asked for, resampled with replacement (its samples repeat, by its C2ST also
  on OUP ID, where all weights are nearly equal).

`best` is this library's defaults. `quick` shrinks either so that every cell runs in seconds: it shows that the machinery
works and says nothing about a method.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reprior_bench import TASKS
from reprior.methods.learned.guidance import RatioSettings
from reprior.methods.sir import SIRSettings
from reprior.methods.registry import METHODS, PRESETS
from reprior_bench.methods.priorguide import PriorGuideSettings
from reprior.methods.rejuvenate import RejuvenateSettings

__all__ = [
    "PRESET_METHODS",
    "QUICK_METHODS",
    "QUICK_PREDICT",
    "REGIMES",
    "SERIES",
    "TASKS",
    "method_settings",
    "methods_of",
]

REGIMES = ("id", "ood")
SERIES = ("oup", "turin")  # tasks whose data are a series, for the predictive part
PRESET_METHODS: dict[str, tuple[str, ...]] = {
    "paper": ("base", "priorguide", "wsm", "nre", "kliep", "sir", "analytic"),
    "best": (
        *("base", "auto", "transport", "rejuvenate", "nre", "kliep", "pearson", "reverse_kl", "hellinger"),
        *("wsm", "priorguide", "sir", "analytic"),
    ),
}
QUICK_METHODS = ("base", "auto", "nre", "sir")
QUICK_PREDICT = ("base", "sir")


def methods_of(preset: str, task: str, asked: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The methods that a preset runs on a task: those asked for, or all of the preset's.

    `analytic` exists for Gaussian Linear alone.
    """
    chosen = asked or PRESET_METHODS[preset]
    return tuple(m for m in chosen if m != "analytic" or task == "gaussian_linear")


def method_settings(method: str, preset: str, samples: int, quick: bool) -> Any:
    """The settings of a method under a preset.

    Arguments:
        method: the method.
        preset: "best" or "paper".
        samples: how many samples will be drawn per observation.
        quick: whether to take the smallest version.
    """
    kind = None if method == "base" else METHODS[method][0]
    if kind is RatioSettings:
        settings = PRESETS[preset]
        if preset == "paper":
            settings = replace(settings, network=replace(settings.network, precision="bfloat16"))
        return _quick_ratio(settings) if quick else settings
    if kind is SIRSettings:
        if preset == "paper":
            return SIRSettings(pool=samples, resampling="multinomial")
        return SIRSettings(pool=samples) if quick else SIRSettings()
    if kind is PriorGuideSettings:
        return PriorGuideSettings(steps=200) if quick else PriorGuideSettings()
    if kind is RejuvenateSettings:
        return RejuvenateSettings(pool=2_000) if quick else RejuvenateSettings()
    return None


def _quick_ratio(settings: RatioSettings) -> RatioSettings:
    training = replace(settings.training, steps=100, batch=512, evaluate_every=50)
    return replace(settings, observations=50, draws=32, training=training)
