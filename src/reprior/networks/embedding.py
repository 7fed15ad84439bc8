"""Embedding networks for x: none, fully connected, a 1-D convolution over a series, or a set.

A set is for x made of exchangeable items: independent draws, or the windows of a series that looks alike all along. One network h
reads each item, and the embedding is a function of the mean of h over the items, beside the items' mean, log standard
deviations and correlations. It cannot learn an order that is not there, so it overfits far less than a network that reads all entries at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from reprior.errors import InputError

__all__ = ["Embedding", "build_embedding", "summary_of"]

SMALLEST = 1e-3  # standard deviation, of standardised entries: keeps its logarithm finite
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
        step: for a "set", the entries from the start of one item to the next: `item` or more for separate items, less for
            overlapping windows; 0 is `item`.
    """

    kind: Literal["none", "dense", "convolution", "set"] = "dense"
    width: int = 128
    layers: int = 2
    features: int = 48
    item: int = 1
    step: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"embedding kind {self.kind!r} is unknown; allowed: {', '.join(KINDS)}")
        if self.step < 0:
            raise InputError(f"embedding step must be at least 0; got {self.step}")
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
    """A network on each item, the mean over the items, and a network on that and on the moments."""

    def __init__(self, settings: Embedding):
        super().__init__()
        self.item, self.step = settings.item, settings.step or settings.item
        self.each = _dense([settings.item] + [settings.width] * settings.layers)
        moments = settings.item * (settings.item + 3) // 2
        self.moments = Moments(settings.item, self.step)
        self.head = _dense([settings.width + moments, settings.width, settings.features])

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.each(x.unfold(-1, self.item, self.step)).mean(-2)
        return self.head(torch.cat([pooled, self.moments(x)], dim=-1))


class Moments(nn.Module):
    """Mean, log standard deviations and correlations over the items of x; (n, m) -> (n, item (item + 3) / 2).

    Arguments:
        item: the number of neighbouring entries of x that make one item.
        step: the entries from the start of one item to the next.
    """

    def __init__(self, item: int, step: int):
        super().__init__()
        self.item, self.step = item, step

    def forward(self, x: Tensor) -> Tensor:
        items = x.unfold(-1, self.item, self.step)
        mean = items.mean(-2)
        gap = items - mean.unsqueeze(-2)
        sd = gap.square().mean(-2).sqrt() + SMALLEST
        i, j = torch.triu_indices(self.item, self.item, 1)
        correlation = (gap[..., i] * gap[..., j]).mean(-2) / (sd[..., i] * sd[..., j])
        return torch.cat([mean, sd.log(), correlation], dim=-1)


def summary_of(settings: Embedding, own: bool) -> nn.Module:
    """What a regression of theta on x is linear in: the moments of a set, else x.

    Arguments:
        settings: the embedding.
        own: whether these settings, and not a module of the user's, embed x.
    """
    if own and settings.kind == "set":
        return Moments(settings.item, settings.step or settings.item)
    return nn.Identity()


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
        left = (x_dim - settings.item) % (settings.step or settings.item)
        if x_dim < settings.item or (left and not settings.step):
            raise InputError(f"x of {x_dim} entries cannot be cut into items of {settings.item}")
        return _Set(settings)
    return _dense([x_dim] + [settings.width] * settings.layers + [settings.features])
