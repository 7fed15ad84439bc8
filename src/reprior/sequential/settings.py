"""Settings of sequential updates, with the paper's as a preset."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler
from reprior.errors import InputError
from reprior.methods import RejuvenateSettings, find
from reprior.methods.learned import PAPER, RatioSettings
from reprior.networks.fit import Training
from reprior.sequential.coordinates import Coordinates

__all__ = ["AccumulateSettings", "RatioUpdateSettings", "key_of", "settings_of"]


@dataclass(frozen=True)
class AccumulateSettings:
    """Settings of ``accumulate``.

    Attributes:
        points: the points at which a new observation's log-density is computed.
        checks: the points at which every observation's log-density is computed again at each later one.
        moves: Metropolis moves of the samples under the fitted sum; 0 leaves them as they were drawn.
        rounds: how often, at most, the draws move, are checked and the fits are made anew at one observation.
        enough: the relative ESS of the fitted sum against the exact one that needs no further round.
        coordinates: what the fits are functions of; standardised theta if None.
        rejuvenate: how the adapted posteriors draw.
    """

    points: int = 800
    checks: int = 100
    moves: int = 40
    rounds: int = 1
    enough: float = 0.3
    coordinates: Coordinates | None = None
    rejuvenate: RejuvenateSettings = field(default_factory=lambda: RejuvenateSettings(pool=5_000))

    def __post_init__(self) -> None:
        if self.points < 100 or self.checks < 10 or self.moves < 0 or self.rounds < 1:
            raise InputError(
                f"accumulate needs points >= 100, checks >= 10, moves >= 0 and rounds >= 1; got {self.points}, "
                f"{self.checks}, {self.moves} and {self.rounds}"
            )
        if not 0 < self.enough <= 1:
            raise InputError(f"enough must lie in (0, 1]; got {self.enough}")
        if not (self.coordinates is None or isinstance(self.coordinates, Coordinates)):
            raise InputError(f"coordinates must be a reprior.sequential.Coordinates; got {self.coordinates!r}")


def _training_from_samples() -> Training:
    return Training(
        steps=1_500, batch=1_024, learning_rate=1e-3, weight_decay=1e-4, ema=0.99, evaluate_every=150, patience=4
    )


def _at_one_observation() -> RatioSettings:
    """A short training of a learned ratio: one observation needs fewer base draws and steps than all of them."""
    training = Training(
        steps=800, batch=2_048, learning_rate=2e-3, ema=0.99, evaluate_every=100, patience=4, validation=0.1
    )
    return RatioSettings(observations=10, draws=4_000, training=training)


@dataclass(frozen=True)
class RatioUpdateSettings:
    """Settings of ``ratio``.

    Attributes:
        ratio: the training of log q_n/p from samples.
        method: the method that changes the prior to q_n, by its name.
        settings: the settings of that method, or the name of a preset; None takes its defaults (for a learned ratio, a
            short training that suits one observation).
        local: whether the method is trained at the new observation alone, the only one where it is asked, instead of
            at the stored ones (the paper's).
        sampler: the sampler.
    """

    ratio: Training = field(default_factory=_training_from_samples)
    method: str = "nre"
    settings: Any = None
    local: bool = True
    sampler: Sampler = field(default_factory=Sampler)

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, Training):
            raise InputError(f"ratio must be the Training of log q/p; got {self.ratio!r}")
        _ = self.method_settings

    @property
    def method_settings(self) -> Any:
        """The settings of the method, checked."""
        method = find(self.method)
        if self.settings is None and method.Settings is RatioSettings:
            return _at_one_observation()
        return method.checked(self.settings)


def _paper() -> RatioUpdateSettings:
    """The paper's sequential update: long trainings, at the stored observations, and its sampler."""
    return RatioUpdateSettings(
        ratio=replace(PAPER.training, steps=16_000, learning_rate=1e-3, validation=Training().validation),
        settings=replace(
            PAPER,
            network=replace(PAPER.network, time_features=16),
            training=replace(PAPER.training, steps=26_000, learning_rate=1e-4),
            sampler=PAPER_SAMPLER,
        ),
        local=False,
        sampler=PAPER_SAMPLER,
    )


PRESETS: dict[str, dict[str, Any]] = {
    "accumulate": {"best": AccumulateSettings},
    "ratio": {"best": RatioUpdateSettings, "paper": _paper},
}


def settings_of(method: str, settings: Any) -> Any:
    """The settings of a method: a preset by name, or the given ones, checked.

    Arguments:
        method: "accumulate" or "ratio".
        settings: None or "best", "paper" (for "ratio"), or the method's settings.
    """
    if method not in PRESETS:
        raise InputError(f"method {method!r} is unknown; allowed: {', '.join(PRESETS)}")
    presets = PRESETS[method]
    settings = "best" if settings is None else settings
    if isinstance(settings, str):
        if settings not in presets:
            raise InputError(f"settings {settings!r} of {method!r} are unknown; allowed: {', '.join(presets)}")
        return presets[settings]()
    kind = presets["best"]
    if not isinstance(settings, kind):
        raise InputError(f"method {method!r} takes {kind.__name__}; got {type(settings).__name__}")
    return settings


def key_of(settings: AccumulateSettings | RatioUpdateSettings) -> dict[str, Any]:
    """What a run depends on of its settings: coordinates count by their name."""
    if isinstance(settings, AccumulateSettings):
        coordinates = settings.coordinates
        return {"settings": replace(settings, coordinates=None), "coordinates": coordinates and coordinates.name}
    return {"settings": settings}
