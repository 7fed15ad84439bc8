"""Settings of the Simformer base and the paper's preset."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import NoiseKind
from reprior.diffusion.schedule import VP
from reprior.errors import InputError
from reprior.networks.masks import MaskMix
from reprior.networks.noise import NoiseLaw
from reprior.networks.tokens import PaperTokens

__all__ = ["PAPER_SIMFORMER", "SimformerSettings"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "noise": ("scalar", "diagonal"),
    "attention": ("shared", "dense"),
    "tokens": ("learned", "paper"),
    "output": ("mean", "score"),
    "levels": ("lognormal", "vp"),
}
_COUNTS = ("layers", "width", "heads", "head_size", "widening", "theta_patch", "patch", "groups", "repeats")


@dataclass(frozen=True)
class SimformerSettings:
    """Settings of the Simformer base.

    Attributes:
        noise: "scalar", or "diagonal" (one level per variable).
        attention: "shared" (x is encoded once per observation) or "dense" (every token attends to every other).
        layers: the number of layers.
        width: the width of a token.
        heads: the number of attention heads.
        head_size: the size of a head.
        widening: the hidden width of the MLPs, in units of the width.
        theta_patch: how many neighbouring parameters share a token.
        patch: how many neighbouring entries of x share a token.
        masks: the probability of each kind of conditioning in training.
        groups: a training batch is split into this many groups of rows, each with a mask of its own.
        repeats: the largest number of noisy states per training row; they share the encoding of x.
        absent: the fraction of groups in which a random subset of x is absent.
        tokens: "learned" or "paper" (see `reprior.networks.tokens`).
        output: "mean" (about a linear guess, with EDM weights) or "score" (divided by sigma_t).
        levels: training noise: "lognormal" (the `law`, in units of the widths) or "vp" (uniform VP time).
        weigh: whether each row counts in units of its own expected error (see `reprior.networks.difficulty`); for problems
            whose posteriors, or predictions, are far wider at some x than at others.
        law: the log-normal law of the noise (its kind follows `noise`).
        vp: the VP schedule, for "vp" levels and for the time that "paper" tokens get.
    """

    noise: NoiseKind = "diagonal"
    attention: Literal["shared", "dense"] = "shared"
    layers: int = 3
    width: int = 128
    heads: int = 4
    head_size: int = 16
    widening: int = 1
    theta_patch: int = 8
    patch: int = 8
    masks: MaskMix = field(default_factory=MaskMix)
    groups: int = 1
    repeats: int = 4
    absent: float = 0.1
    tokens: Literal["learned", "paper"] = "learned"
    output: Literal["mean", "score"] = "mean"
    levels: Literal["lognormal", "vp"] = "lognormal"
    weigh: bool = False
    law: NoiseLaw = field(default_factory=NoiseLaw)
    vp: VP = field(default_factory=VP)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"simformer {name} {getattr(self, name)!r} is unknown; allowed: {', '.join(allowed)}")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise InputError(f"simformer {name} must be at least 1; got {getattr(self, name)}")
        if not 0 <= self.absent <= 1:
            raise InputError(f"simformer absent must lie in [0, 1]; got {self.absent}")
        if self.weigh and self.output == "score":
            raise InputError("simformer weigh=True needs output='mean'; got output='score', the paper's plain loss")
        fits = max(self.theta_patch, self.patch) <= PaperTokens.PLACES
        if self.tokens == "paper" and not (fits and (self.noise, self.width) == ("scalar", PaperTokens.WIDTH)):
            raise InputError(
                f"tokens='paper' need noise='scalar', width={PaperTokens.WIDTH}, and theta_patch and patch up to "
                f"{PaperTokens.PLACES}; got noise={self.noise!r}, width={self.width}, theta_patch={self.theta_patch} and "
                f"patch={self.patch}"
            )
        object.__setattr__(self, "law", NoiseLaw(**{**asdict(self.law), "kind": self.noise}))

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> SimformerSettings:
        """The settings from their plain data, the inverse of `dataclasses.asdict`."""
        parts = {"masks": MaskMix(**data["masks"]), "law": NoiseLaw(**data["law"]), "vp": VP(**data["vp"])}
        return cls(**{**data, **parts})

    def range(self) -> tuple[float, float]:
        """The smallest and the largest noise level that is trained."""
        if self.levels == "lognormal":
            return self.law.s_min, self.law.s_max
        return self.vp.level(self.vp.t_min), self.vp.level(self.vp.t_max)

    def draw_levels(self, width: Tensor, generator: Generator) -> Tensor:
        """Noise levels for training, with shape (*, D), or (*, 1) for scalar noise.

        Arguments:
            width: the residual width of the guess, with shape (*, D): noise levels are drawn around it.
            generator: the source of randomness.
        """
        lead, wide = width.shape[:-1], 1 if self.noise == "scalar" else width.shape[-1]
        alike = (torch.rand(*lead, 1, generator=generator) < self.law.isotropic).to(width.device)
        if self.levels == "vp":
            t = self.vp.t_min + (self.vp.t_max - self.vp.t_min) * torch.rand(*lead, wide, generator=generator)
            s = self.vp.s(t).to(width)
            return torch.where(alike, s[..., :1], s)
        law = self.law
        s = torch.exp(law.log_mean + law.log_std * torch.randn(*lead, wide, generator=generator)).to(width)
        one = s[..., :1] * width.log().mean(-1, keepdim=True).exp()
        return (one if wide == 1 else torch.where(alike, one, s * width)).clamp(law.s_min, law.s_max)


PAPER_SIMFORMER = SimformerSettings(
    noise="scalar",
    attention="dense",
    layers=6,
    width=PaperTokens.WIDTH,
    heads=4,
    head_size=10,
    widening=3,
    theta_patch=1,
    patch=1,
    masks=MaskMix(posterior=0.2, joint=0.2, likelihood=0.2, predictive=0.0, random=0.0, random_3=0.2, random_7=0.2),
    groups=1,
    repeats=1,
    absent=0.0,
    tokens="paper",
    output="score",
    levels="vp",
)
