"""Settings of a learned ratio: this library's own (`BEST`) and the paper's (`PAPER`).

- `PAPER`: joint weights, network and training as the paper states them.
- `BEST` (the default): the ratio of posteriors, with weights normalised within each x, at x that are likely under q. The
  plug-in value (`reprior.methods.plug_in`) is the starting point, and a learned gate can switch it off. The held-out loss
  of the ratio, a proper score, decides whether the plug-in value is used, and when to stop.

With ``on="transport"`` the quadratic part of log r is transported (`reprior.methods.transport`, exact). The network then
learns log r minus that part, on draws of the transported base. `BEST` does so where transport can make all or nearly all of
the change; elsewhere it learns on the base itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reprior.diffusion.sampler import Sampler
from reprior.diffusion.schedule import VP
from reprior.errors import InputError
from reprior.networks.fit import Training
from reprior.networks.ratio import RatioNetworkSettings

__all__ = ["BEST", "PAPER", "RatioSettings"]

CHOICES = {
    "weights": ("posterior", "joint"),
    "plug_in": ("choose", "on", "off"),
    "on": ("base", "transport", "choose"),
    "time": ("vp", "log"),
}


@dataclass(frozen=True)
class RatioSettings:
    """Settings of a learned ratio.

    Attributes:
        weights: "posterior" (normalised within each x) or "joint" (the paper's).
        plug_in: whether the plug-in value takes part: "choose" (the held-out loss decides), "on" or "off".
        on: what the ratio is learned on: the "base"; "transport" of the quadratic part of log r (posterior weights only);
            or "choose": transport where it makes all or nearly all of the change, else the base.
        observations: the number of observations that base samples are drawn at.
        draws: base samples for each of them.
        time: how noise is drawn: "vp" (uniform in VP time, as in the paper) or "log" (log-normal).
        network: the architecture.
        training: the training settings.
        sampler: how the base samples of the training set are drawn.
    """

    weights: Literal["posterior", "joint"] = "posterior"
    plug_in: Literal["choose", "on", "off"] = "choose"
    on: Literal["base", "transport", "choose"] = "choose"
    observations: int = 1_000
    draws: int = 64
    time: Literal["vp", "log"] = "log"
    network: RatioNetworkSettings = field(default_factory=RatioNetworkSettings)
    training: Training = field(
        default_factory=lambda: Training(
            steps=2_400,
            batch=2_048,
            learning_rate=2e-3,
            ema=0.995,
            evaluate_every=150,
            patience=5,
            validation=0.1,
        )
    )
    sampler: Sampler = field(default_factory=lambda: Sampler(steps=16))

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}={getattr(self, name)!r} is unknown; allowed: {', '.join(allowed)}")
        if self.on == "transport" and self.weights == "joint":
            raise InputError("a ratio on transport is learned with weights='posterior'; got 'joint'")
        if self.observations < 2 or self.draws < 2:
            raise InputError(f"observations and draws must be at least 2; got {self.observations}, {self.draws}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RatioSettings:
        """Settings from plain data, as `dataclasses.asdict` gives it."""
        parts = {
            "network": RatioNetworkSettings(**data["network"]),
            "training": Training(**data["training"]),
            "sampler": Sampler(**data["sampler"]),
        }
        return cls(**{**data, **parts})

    @property
    def largest_noise(self) -> float:
        """The largest noise level in training; the network is not used above it."""
        return float(VP().level(VP().t_max)) if self.time == "vp" else math.inf


BEST = RatioSettings()
PAPER = RatioSettings(
    weights="joint",
    plug_in="off",
    on="base",
    observations=420,
    draws=1_000,
    time="vp",
    network=RatioNetworkSettings(width=256, layers=4, time="fourier", time_features=4),
    training=Training(
        steps=10_000,
        batch=4_096,
        learning_rate=3e-4,
        final_learning_rate=3e-4,
        schedule="constant",
        weight_decay=0.01,
        ema=0.0,
        evaluate_every=500,
        patience=1_000,
        validation=0.02,
    ),
    sampler=Sampler(kind="euler_maruyama", steps=25),
)
