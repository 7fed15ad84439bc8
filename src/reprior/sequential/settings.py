"""Settings of sequential updates, with the paper's as presets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler
from reprior.networks.fit import Training
from reprior.errors import InputError
from reprior.methods.learned.guidance import PAPER, RatioSettings
from reprior_bench.methods.priorguide import MonteCarloSettings
from reprior.methods.rejuvenate import RejuvenateSettings
from reprior.sequential.coordinates import COORDINATES

__all__ = ["AccumulateSettings", "MonteCarloUpdateSettings", "RatioUpdateSettings", "settings_of"]

_RATIO = Training(
    steps=1_500, batch=1_024, learning_rate=1e-3, weight_decay=1e-4, ema=0.99, evaluate_every=150, patience=4
)


@dataclass(frozen=True)
class AccumulateSettings:
    """Settings of ``accumulate``.

    Attributes:
        points: the points at which a new observation's log-density is computed.
        checks: the points at which every observation's log-density is computed again at each later one.
        moves: Metropolis moves of the samples under the fitted sum; 0 leaves them as guidance drew them.
        rounds: how often, at most, the draws move, are checked and the fits mended at one observation.
        coordinates: what the fits are functions of: "theta", or the name of others (`reprior.sequential.coordinates`).
        guidance: how the adapted posteriors draw.
    """

    points: int = 800
    checks: int = 100
    moves: int = 40
    rounds: int = 1
    coordinates: str = "theta"
    guidance: RejuvenateSettings = field(default_factory=lambda: RejuvenateSettings(pool=5_000))

    def __post_init__(self) -> None:
        if self.points < 100 or self.checks < 10 or self.moves < 0 or self.rounds < 1:
            raise InputError(
                f"accumulate needs points >= 100, checks >= 10, moves >= 0 and rounds >= 1; got {self.points}, "
                f"{self.checks}, {self.moves} and {self.rounds}"
            )
        if self.coordinates not in ("theta", *COORDINATES):
            allowed = ", ".join(("theta", *COORDINATES))
            raise InputError(f"coordinates {self.coordinates!r} are unknown; allowed: {allowed}")


@dataclass(frozen=True)
class RatioUpdateSettings:
    """Settings of ``ratio``.

    Attributes:
        ratio: the training of log q_n/p from samples.
        guidance: the training of the guidance on it.
        here: whether the guidance is trained at the new observation alone, the only one where it is asked, instead of
            the stored ones (the paper's).
        sampler: the guided sampler.
    """

    ratio: Training = _RATIO
    guidance: RatioSettings = field(
        default_factory=lambda: RatioSettings(
            observations=10,
            draws=4_000,
            training=Training(
                steps=800, batch=2_048, learning_rate=2e-3, ema=0.99, evaluate_every=100, patience=4, validation=0.1
            ),
        )
    )
    here: bool = True
    sampler: Sampler = field(default_factory=Sampler)


@dataclass(frozen=True)
class MonteCarloUpdateSettings:
    """Settings of ``priorguide_mc``.

    Attributes:
        ratio: the training of log q_n/p from samples.
        guidance: the Monte Carlo average and the Langevin corrections.
        sampler: the guided sampler.
    """

    ratio: Training = _RATIO
    guidance: MonteCarloSettings = field(default_factory=lambda: MonteCarloSettings(draws=100))
    sampler: Sampler = PAPER_SAMPLER


PAPER_RATIO = replace(PAPER.training, steps=16_000, learning_rate=1e-3, validation=Training().validation)
PAPER_UPDATE = RatioUpdateSettings(
    ratio=PAPER_RATIO,
    guidance=replace(
        PAPER,
        network=replace(PAPER.network, time_features=16),
        training=replace(PAPER.training, steps=26_000, learning_rate=1e-4),
        sampler=PAPER_SAMPLER,
    ),
    here=False,
    sampler=PAPER_SAMPLER,
)
PRESETS: dict[str, dict[str, Any]] = {
    "accumulate": {"best": AccumulateSettings()},
    "ratio": {"best": RatioUpdateSettings(), "paper": PAPER_UPDATE},
    "priorguide_mc": {
        "best": MonteCarloUpdateSettings(),
        "paper": MonteCarloUpdateSettings(ratio=PAPER_RATIO, guidance=MonteCarloSettings(draws=1_000)),
    },
}


def settings_of(method: str, settings: Any) -> Any:
    """The settings of a method: a preset by name, or the given ones, checked.

    Arguments:
        method: "accumulate", "ratio" or "priorguide_mc".
        settings: "best", "paper" (where the paper has the method), or the method's settings.
    """
    if method not in PRESETS:
        raise InputError(f"method {method!r} is unknown; allowed: {', '.join(PRESETS)}")
    presets = PRESETS[method]
    if isinstance(settings, str):
        if settings not in presets:
            raise InputError(f"settings {settings!r} of {method!r} are unknown; allowed: {', '.join(presets)}")
        return presets[settings]
    kind = type(presets["best"])
    if not isinstance(settings, kind):
        raise InputError(f"method {method!r} takes {kind.__name__}; got {type(settings).__name__}")
    return settings
