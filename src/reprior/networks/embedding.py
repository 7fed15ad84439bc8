"""Embedding networks for x: none, fully connected, or a 1-D convolution over a series."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from reprior.errors import InputError

__all__ = ["Embedding", "build_embedding"]

KINDS = ("none", "dense", "convolution")


@dataclass(frozen=True)
class Embedding:
    """Settings of an embedding network for x.

    Attributes:
        kind: "none" (x itself), "dense" (fully connected) or "convolution" (1-D, for a series).
        width: the hidden width ("dense") or the number of channels ("convolution").
        layers: the number of hidden layers.
        features: the size of the embedding.
    """

    kind: Literal["none", "dense", "convolution"] = "dense"
    width: int = 128
    layers: int = 2
    features: int = 48

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"embedding kind {self.kind!r} is unknown; allowed: {', '.join(KINDS)}")
        if min(self.width, self.layers, self.features) < 1:
            raise InputError(f"embedding width, layers and features must be at least 1; got {self}")


class _Convolution(nn.Module):
    """Strided 1-D convolutions, each halving the series, then a linear layer to the features."""

    def __init__(self, settings: Embedding, x_dim: int):
        super().__init__()
        channels, stages, length = 1, [], x_dim
        for _ in range(settings.layers):
            stages += [nn.Conv1d(channels, settings.width, 5, stride=2, padding=2), nn.SiLU()]
            channels, length = settings.width, (length + 1) // 2
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels * length, settings.features)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(self.head(self.stages(x.unsqueeze(-2)).flatten(-2)))


def build_embedding(settings: Embedding, x_dim: int) -> nn.Module:
    """The embedding module of the settings, (n, m) -> (n, features)."""
    if settings.kind == "none":
        return nn.Identity()
    if settings.kind == "convolution":
        if x_dim < 2**settings.layers:
            raise InputError(
                f"{settings.layers} halvings of a series need at least {2**settings.layers} points; got {x_dim}"
            )
        return _Convolution(settings, x_dim)
    sizes = [x_dim] + [settings.width] * settings.layers
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], settings.features), nn.SiLU())
