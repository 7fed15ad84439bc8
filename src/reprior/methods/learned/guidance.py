"""Density-ratio guidance: the paper's method, with its estimators.

A network a(theta_t, x, t) is trained on stored simulations and base samples to be the log ratio of q and p along the
diffusion (`reprior.ratio`), and its gradient is added to the base score. Two settings:

- `PAPER`: joint weights, network and training as the paper states them.
- `BEST` (the default): the posterior ratio, weights normalised within each x, x drawn where it will be asked, and the
  anchor (`reprior.methods.plug_in`) as a starting point that a learned gate switches off where it is wrong:
  a = (1 + g(s)) anchor + network, with g and the network zero at first. The held-out loss of the ratio, a proper
  score, decides between with and without anchor (after a short trial of both), and when to stop.

With ``under="transport"`` the quadratic part of log r is transported (`reprior.methods.transport`, exact), and only the
rest is learned, on draws of the transported base. `BEST` does so where the base can express log r, or all but little of
it, and learns on the base itself elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser, widen
from reprior.diffusion.sampler import Sampler
from reprior.diffusion.schedule import VP
from reprior.networks.fit import FitResult, Training
from reprior.errors import InputError
from reprior.methods.plug_in import anchor_value, posterior_draws, precision_of
from reprior.methods.method import GradientGuided, Guidance, check_learned
from reprior.quadratic import Quadratic, find_quadratic
from reprior.methods.transport import Transported
from reprior.networks.ratio import RatioMLP, RatioNetworkSettings
from reprior.posterior import Posterior
from reprior.methods.learned.losses import loss_of

__all__ = ["BEST", "PAPER", "DensityRatioGuidance", "RatioModel", "RatioSettings", "trained_to"]


@dataclass(frozen=True)
class RatioSettings:
    """Settings of a learned guidance.

    Attributes:
        weights: "posterior" (normalised within each x) or "joint" (the paper's).
        anchor: "choose" (the held-out loss decides), "on" or "off".
        under: what the ratio stands on: the "base", "transport" of the quadratic part of log r (posterior weights only), or
            "choose": transport where that makes the change but for little.
        observations: the number of observations that base samples are drawn at.
        draws: base samples for each of them.
        time: how noise is drawn: "vp" (uniform in VP time, as in the paper) or "log" (log-normal).
        network: the architecture.
        training: the training settings.
        sampler: how the base samples of the training set are drawn.
    """

    weights: Literal["posterior", "joint"] = "posterior"
    anchor: Literal["choose", "on", "off"] = "choose"
    under: Literal["base", "transport", "choose"] = "choose"
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
        for name, allowed in (
            ("weights", ("posterior", "joint")),
            ("anchor", ("choose", "on", "off")),
            ("under", ("base", "transport", "choose")),
            ("time", ("vp", "log")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}={getattr(self, name)!r} is unknown; allowed: {', '.join(allowed)}")
        if self.under == "transport" and self.weights == "joint":
            raise InputError("a ratio under transport is learned with weights='posterior'; got 'joint'")
        if self.observations < 2 or self.draws < 2:
            raise InputError(f"observations and draws must be at least 2; got {self.observations}, {self.draws}")


BEST = RatioSettings()
PAPER = RatioSettings(
    weights="joint",
    anchor="off",
    under="base",
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


def trained_to(settings: RatioSettings) -> float:
    """The largest noise that the training of a network saw: beyond it, the network says nothing."""
    return float(VP().level(VP().t_max)) if settings.time == "vp" else math.inf


class RatioModel(nn.Module):
    """a(z, s, x) = (1 + g(s)) anchor + network(z, s, x).

    Arguments:
        dim: the number D of diffused variables.
        x_features: the size of the features of x.
        settings: the architecture.
        anchored: whether the anchor takes part.
    """

    def __init__(self, dim: int, x_features: int, settings: RatioNetworkSettings, anchored: bool):
        super().__init__()
        self.network = RatioMLP(dim, x_features, 1, settings)
        self.anchored = anchored
        if anchored:
            self.gate = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))
            nn.init.zeros_(self.gate[2].weight)  # pyright: ignore[reportArgumentType]
            nn.init.zeros_(self.gate[2].bias)  # pyright: ignore[reportArgumentType]

    def forward(self, z: Tensor, s: Tensor, code: Tensor, anchor: Tensor) -> Tensor:
        """a, with shape (*, K); ``anchor`` has that shape, and is not used where there is none."""
        a = self.network(z, s, code)[..., 0]
        if not self.anchored:
            return a
        s = s.reshape(1) if s.ndim == 0 else s
        return a + (1 + self.gate(s.log())[..., 0]) * anchor


class DensityRatioGuidance(Guidance):
    """Guidance by a learned log ratio.

    Arguments:
        name: the estimator: nre, kliep, pearson, reverse_kl or hellinger.
        model: the trained ratio.
        posterior: the base posterior it was trained for.
        change: the change of prior.
        settings: how it was trained.
        result: what the training did.
        notes: what there is to say of the training set (ESS of the weights, which entries of x are observed, ...).
        under: the part of log r that transport takes over, or None.
    """

    def __init__(
        self,
        name: str,
        model: RatioModel,
        posterior: Posterior,
        change: PriorChange,
        settings: RatioSettings,
        result: FitResult | None = None,
        notes: dict[str, Any] | None = None,
        under: Quadratic | None = None,
    ):
        loss_of(name)
        self.name, self.model, self.posterior, self.under = name, model, posterior, under
        self.change = change if under is None else change.without(under)
        self.settings, self.result, self.notes = settings, result, notes or {}
        self.quadratic = find_quadratic(self.change)

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        check_learned(self.name, denoiser, self.model.network.dim, self.notes.get("observed"))
        if self.under is not None:
            denoiser = Transported(denoiser, self.under)
        precision = denoiser.x.new_zeros(())
        if self.model.anchored and self.quadratic.exact:
            d = len(self.quadratic.h)
            if self.settings.weights == "joint":  # trained without the posterior's precision
                precision = denoiser.x.new_zeros(denoiser.observations, d, d)
            else:
                precision = precision_of(posterior_draws(denoiser, generator), d)
        with torch.no_grad():
            features = self.posterior.base.features(denoiser.x)
            code = self.model.network.encode(widen(features, self.model.network.x_features))
        return _RatioGuided(denoiser, self.model, code, self.change, self.quadratic, precision, self.settings)

    def config(self) -> dict[str, Any]:
        network = self.model.network
        return {
            "settings": asdict(self.settings),
            "dim": network.dim,
            "x_features": network.x_features,
            "anchored": self.model.anchored,
            "notes": self.notes,
            "under": None if self.under is None else {"c": self.under.c, "misfit": self.under.misfit},
        }

    def tensors(self) -> dict[str, Tensor]:
        own = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        return own if self.under is None else own | {"under.L": self.under.L, "under.h": self.under.h}


class _RatioGuided(GradientGuided):
    def __init__(
        self,
        inner: Denoiser,
        model: RatioModel,
        code: Tensor,
        change: PriorChange,
        quadratic: Quadratic,
        precision: Tensor,
        settings: RatioSettings,
    ):
        super().__init__(inner)
        self.model, self.code, self.change = model, code, change
        self.quadratic, self.precision = quadratic, precision
        self.needs_mean_gradient = model.anchored
        self.s_max = min(inner.s_max, trained_to(settings))

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        anchor = mean[..., 0]
        if self.model.anchored:
            anchor = anchor_value(self.change, self.quadratic, mean, s, self.precision)
        return self.model(z, s, self.code, anchor)
