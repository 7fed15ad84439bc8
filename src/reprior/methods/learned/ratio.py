"""Density-ratio guidance: the paper's method, with its five estimators.

A network a(theta_t, x, t) learns the log ratio of q and p along the diffusion from stored simulations and base samples.
Its gradient is added to the base score. The estimators differ in their loss alone (`reprior.methods.learned.losses`). The
paper is "Guidance for Prior Change via Density Ratio Estimation" (Zang, Liu and Lin).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser, widen
from reprior.methods.guided import GradientGuided, check_learned
from reprior.methods.learned import losses
from reprior.methods.learned.model import RatioModel
from reprior.methods.learned.settings import BEST, PAPER, RatioSettings
from reprior.methods.learned.training import Learned, learn
from reprior.methods.method import Method, Problem
from reprior.methods.plug_in import plug_in_value, posterior_draws, precision_of
from reprior.methods.smc import SMC
from reprior.methods.transport import Transported
from reprior.networks.fit import FitResult
from reprior.quadratic import Quadratic

__all__ = ["KLIEP", "NRE", "Hellinger", "LearnedRatio", "Pearson", "ReverseKL"]


class LearnedRatio(Method):
    """Guidance by a learned log ratio; each estimator is a subclass with its loss.

    Arguments:
        problem: the base posterior it was trained for, and the change of prior.
        settings: how it was trained.
        learned: the trained network, and what the training did.
    """

    Settings = RatioSettings
    presets: ClassVar[Mapping[str, RatioSettings]] = {"best": BEST, "paper": PAPER}
    loss: ClassVar[Callable[[Tensor, Tensor], Tensor]]
    settings: RatioSettings

    def __init__(self, problem: Problem, settings: RatioSettings, learned: Learned):
        super().__init__(problem, settings)
        self.model, self.transported, self.notes = learned.model, learned.transported, learned.notes
        self.result = learned.result
        whole = problem.change
        self.rest: PriorChange = whole if self.transported is None else whole.minus(self.transported)

    @classmethod
    def build(cls, problem: Problem, settings: RatioSettings | None = None) -> Method:
        chosen = settings or BEST
        return cls(problem, chosen, learn(problem, cls.loss, chosen, f"{cls.name} ratio"))

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        check_learned(self.name, denoiser, self.model.network.dim, self.notes.get("observed"))
        if self.transported is not None:
            denoiser = Transported(denoiser, self.transported)
        precision = denoiser.x.new_zeros(())
        quadratic = self.rest.quadratic
        if self.model.with_plug_in and quadratic.exact:
            d = len(quadratic.h)
            if self.settings.weights == "joint":  # trained without the posterior's precision
                precision = denoiser.x.new_zeros(denoiser.observations, d, d)
            else:
                precision = precision_of(posterior_draws(denoiser, generator), d)
        with torch.no_grad():
            features = self.problem.posterior.base.features(denoiser.x)
            code = self.model.network.encode(widen(features, self.model.network.x_features))
        return _RatioGuided(denoiser, self, code, precision)

    def corrected(self) -> Method:
        return SMC(self.problem, learned=self)

    def tensors(self) -> dict[str, Tensor]:
        own = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        part = self.transported
        return own if part is None else own | {"transported.L": part.L, "transported.h": part.h}

    def config(self) -> dict[str, Any]:
        network, part = self.model.network, self.transported
        return {
            "settings": asdict(self.settings),
            "dim": network.dim,
            "x_features": network.x_features,
            "with_plug_in": self.model.with_plug_in,
            "notes": self.notes,
            "transported": None if part is None else {"c": part.c, "misfit": part.misfit},
        }

    @classmethod
    def rebuild(cls, problem: Problem, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Method:
        settings = RatioSettings.from_dict(config["settings"])
        model = RatioModel(config["dim"], config["x_features"], settings.network, config["with_plug_in"])
        own = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        model.load_state_dict(own)
        part, transported = config["transported"], None
        if part is not None:
            transported = Quadratic(tensors["transported.L"], tensors["transported.h"], part["c"], part["misfit"])
        result = FitResult(0, 0, config["notes"]["held_out"], [], 0.0, "read from a file")
        return cls(
            problem,
            settings,
            Learned(model.requires_grad_(False).eval(), transported, result, dict(config["notes"])),
        )


class _RatioGuided(GradientGuided):
    def __init__(self, inner: Denoiser, method: LearnedRatio, code: Tensor, precision: Tensor):
        super().__init__(inner)
        self.model, self.change = method.model, method.rest
        self.code, self.precision = code, precision
        self.needs_mean_gradient = self.model.with_plug_in
        self.s_max = min(inner.s_max, method.settings.largest_noise)

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        plug_in = mean[..., 0]
        if self.model.with_plug_in:
            plug_in = plug_in_value(self.change, self.change.quadratic, mean, s, self.precision)
        return self.model(z, s, self.code, plug_in)


class NRE(LearnedRatio):
    """Neural ratio estimation: logistic loss (Hermans et al. 2020, arXiv 1903.04057)."""

    name = "nre"
    summary = "learned log ratio, logistic loss"
    loss = staticmethod(losses.nre)


class KLIEP(LearnedRatio):
    """Kullback-Leibler importance estimation (Sugiyama et al. 2008)."""

    name = "kliep"
    summary = "learned log ratio, Kullback-Leibler"
    loss = staticmethod(losses.kliep)


class Pearson(LearnedRatio):
    """Pearson chi-square, a variational f-divergence (Nguyen et al. 2010, arXiv 0809.0853)."""

    name = "pearson"
    summary = "learned log ratio, Pearson chi-square"
    loss = staticmethod(losses.pearson)


class ReverseKL(LearnedRatio):
    """Reverse Kullback-Leibler, a variational f-divergence (Nguyen et al. 2010, arXiv 0809.0853)."""

    name = "reverse_kl"
    summary = "learned log ratio, reverse Kullback-Leibler"
    loss = staticmethod(losses.reverse_kl)


class Hellinger(LearnedRatio):
    """Squared Hellinger distance, a variational f-divergence (Nguyen et al. 2010, arXiv 0809.0853)."""

    name = "hellinger"
    summary = "learned log ratio, Hellinger"
    loss = staticmethod(losses.hellinger)
