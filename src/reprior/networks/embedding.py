"""Embedding networks for x: none, fully connected, a 1-D convolution over a series, or a set.

A set is for x made of exchangeable items (independent draws, or a long series whose order says little): one network h
reads each item, and the embedding is a function of the mean of h over the items. It cannot learn an order that is not there,
so it overfits far less than a network that reads all entries at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from reprior.errors import InputError

__all__ = ["Embedding", "build_embedding"]

KINDS = ("none", "dense", "convolution", "set")


@dataclass(frozen=True)
class Embedding:
    """Settings of an embedding network for x.

    Attributes:
        kind: "none" (x itself), "dense" (fully connected), "convolution" (1-D, for a series) or "set" (exchangeable items).
        width: the hidden width ("dense", "set") or the number of channels ("convolution").
        layers: the number of hidden layers.
        features: the size of the embedding.
        item: for a "set", the number of neighbouring entries of x that make one item.
    """

    kind: Literal["none", "dense", "convolution", "set"] = "dense"
    width: int = 128
    layers: int = 2
    features: int = 48
    item: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"embedding kind {self.kind!r} is unknown; allowed: {', '.join(KINDS)}")
        if min(self.width, self.layers, self.features, self.item) < 1:
            raise InputError(f"embedding width, layers, features and item must be at least 1; got {self}")


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


class _Set(nn.Module):
    """A network on each item, the mean over the items, and a network on that."""

    def __init__(self, settings: Embedding):
        super().__init__()
        self.item = settings.item
        self.each = _dense([settings.item] + [settings.width] * settings.layers)
        self.head = _dense([settings.width, settings.width, settings.features])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(x.unflatten(-1, (-1, self.item))).mean(-2))


def _dense(sizes: list[int]) -> nn.Sequential:
    """Linear layers of these sizes, each followed by SiLU."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers)


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
    if settings.kind == "set":
        if x_dim % settings.item:
            raise InputError(f"x of {x_dim} entries cannot be cut into items of {settings.item}")
        return _Set(settings)
    return _dense([x_dim] + [settings.width] * settings.layers + [settings.features])
