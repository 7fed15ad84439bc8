"""What a preset runs: its methods, its counts, and the settings of each method.

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

`best` is the library's defaults. `quick` makes every job run in seconds: it shows that the machinery works and says
nothing about a method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reprior.errors import InputError
from reprior.methods import RejuvenateSettings, SIRSettings, find
from reprior.methods.learned import RatioSettings
from reprior_bench import tasks
from reprior_bench.methods.priorguide import PriorGuideSettings

__all__ = ["EXACT", "PRESETS", "UNCHANGED", "Preset", "methods_of", "preset_of", "settings_of"]

UNCHANGED = "base"  # no change of prior: the library's method "none"
EXACT = "exact"  # the predictive of the task itself: what a perfect base with perfect guidance would draw


def _learned(quick: bool) -> Callable[[int], RatioSettings]:
    def settings(samples: int) -> RatioSettings:
        if quick:
            best = RatioSettings()
            training = replace(best.training, steps=100, batch=512, evaluate_every=50)
            return replace(best, observations=50, draws=32, training=training)
        paper = find("nre").presets["paper"]
        return replace(paper, network=replace(paper.network, precision="bfloat16"))

    return settings


LEARNED = ("nre", "kliep", "pearson", "reverse_kl", "hellinger", "wsm")


@dataclass(frozen=True)
class Preset:
    """What is run.

    Attributes:
        methods: the methods, in the order of the tables.
        settings: by method, its settings given the number of samples per observation; the method's defaults where it is
            not named.
        observations: observations per job.
        runs: runs per method.
        samples: samples per observation.
    """

    methods: tuple[str, ...]
    settings: Mapping[str, Callable[[int], Any]] = field(default_factory=dict)
    observations: int = 10
    runs: int = 3
    samples: int = 5_000


PRESETS: dict[str, Preset] = {
    "paper": Preset(
        (UNCHANGED, "priorguide", "wsm", "nre", "kliep", "sir", "analytic"),
        {
            **dict.fromkeys(LEARNED, _learned(quick=False)),
            "sir": lambda samples: SIRSettings(pool=samples, resampling="multinomial"),
        },
    ),
    "best": Preset(
        (
            *(UNCHANGED, "auto", "transport", "rejuvenate", "nre", "kliep", "pearson", "reverse_kl", "hellinger"),
            *("wsm", "priorguide", "sir", "analytic"),
        )
    ),
    "quick": Preset(
        (UNCHANGED, "auto", "nre", "sir"),
        {
            **dict.fromkeys(LEARNED, _learned(quick=True)),
            "sir": lambda samples: SIRSettings(pool=samples),
            "priorguide": lambda _: PriorGuideSettings(steps=200),
            "rejuvenate": lambda _: RejuvenateSettings(pool=2_000),
        },
        observations=1,
        runs=1,
        samples=500,
    ),
}


def preset_of(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]


def methods_of(preset: str, task: str, asked: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The methods that a preset runs on a task: those asked for, or all of the preset's.

    `analytic` is for a likelihood x = theta + Gaussian noise alone.
    """
    chosen = asked or preset_of(preset).methods
    return tuple(m for m in chosen if m != "analytic" or tasks.get(task).noise_variance is not None)


def settings_of(method: str, preset: str, samples: int) -> Any:
    """The settings of a method under a preset; None for the method's defaults.

    Arguments:
        method: the method.
        preset: the preset.
        samples: how many samples will be drawn per observation.
    """
    make = preset_of(preset).settings.get(method)
    return None if make is None else make(samples)
