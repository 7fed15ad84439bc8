"""Embedding networks for x: none, fully connected, a 1-D convolution or patches of a series, a set, or a peak in noise.

Patches are for a long series, of one or more channels, in which positions matter. One network h reads each stretch of
neighbouring points with half a stretch on either side, and its outputs are concatenated in order. It is a convolution
whose kernel is twice its stride, computed as one matrix product.

A set is for x made of exchangeable items, such as independent draws (deep sets, Zaheer et al. 2017, arXiv 1703.06114). One
network h reads each item. The embedding is a function of the mean of h over the items and of the items' mean, log standard
deviations and correlations. It cannot depend on the order of the items, so it overfits far less than a network that reads
all entries at once.

A peak is for a series that is statistically uniform but for one peak somewhere, such as an echo in noise. One network h
reads overlapping windows, each with its distance from the highest point of the series and with the points around that one,
so that it can tell noise from the wings of the peak. The windows are read twice; the second time with the mean of h over
all windows and the sorted entries of x. The position of the peak itself is not an input, only positions relative to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from reprior.errors import InputError

__all__ = ["Embedding", "build_embedding", "summary_of"]

SMALLEST = 1e-3  # added to the standard deviation of standardised items: keeps its logarithm finite
KINDS = ("none", "dense", "convolution", "patches", "set", "peak")


@dataclass(frozen=True)
class Embedding:
    """Settings of an embedding network for x.

    Attributes:
        kind: "none" (x itself), "dense" (fully connected), "convolution" (1-D, for a series), "patches" (stretches of a
            series), "set" (exchangeable items) or "peak" (a series that is uniform but for one peak somewhere).
        width: the hidden width, or the number of channels ("convolution").
        layers: the number of hidden layers (of the network on each patch, item or window).
        features: the size of the embedding.
        item: the number of neighbouring entries that make one patch, item or window.
        step: for a "set" and a "peak", the number of entries from the start of one item or window to the next: `item` or
            more for separate ones, less for overlapping ones; 0 stands for `item`.
        channels: for "patches", the number of series that x holds, one after the other.
        extra: for "patches", the number of entries after the series that are no part of them (summaries of x, say).
    """

    kind: Literal["none", "dense", "convolution", "patches", "set", "peak"] = "dense"
    width: int = 128
    layers: int = 2
    features: int = 48
    item: int = 1
    step: int = 0
    channels: int = 1
    extra: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"embedding kind {self.kind!r} is unknown; allowed: {', '.join(KINDS)}")
        if self.step < 0:
            raise InputError(f"embedding step must be at least 0; got {self.step}")
        if min(self.width, self.layers, self.features, self.item, self.channels) < 1:
            raise InputError(f"embedding width, layers, features, item and channels must be at least 1; got {self}")
        if self.extra < 0:
            raise InputError(f"embedding extra must be 0 or more; got {self.extra}")
        if (self.channels > 1 or self.extra) and self.kind != "patches":
            raise InputError(
                f"channels and extra go with kind='patches'; got {self.channels} and {self.extra} with kind={self.kind!r}"
            )

    @property
    def compares(self) -> bool:
        """Whether entries of x are compared with each other, so that all need the same shift and scale."""
        return self.kind == "peak"


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


class _Patches(nn.Module):
    """A network on each stretch of points, and a network on the outputs of all of them, in order."""

    def __init__(self, settings: Embedding, x_dim: int):
        super().__init__()
        self.channels, self.stride, self.extra = settings.channels, settings.item, settings.extra
        self.side = settings.item // 2
        window = self.stride + 2 * self.side
        self.each = _dense([self.channels * window] + [settings.width] * settings.layers)
        patches = (x_dim - self.extra) // (self.channels * self.stride)
        self.head = _dense([patches * settings.width + self.extra, 2 * settings.features, settings.features])

    def forward(self, x: Tensor) -> Tensor:
        series, extra = x.split([x.shape[-1] - self.extra, self.extra], dim=-1)
        series = nn.functional.pad(series.unflatten(-1, (self.channels, -1)), (self.side, self.side))
        patches = series.unfold(-1, self.stride + 2 * self.side, self.stride)  # (*, channels, patches, window)
        found = self.each(patches.movedim(-3, -2).flatten(-2)).flatten(-2)
        return self.head(torch.cat([found, extra], dim=-1))


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


class _Peak(nn.Module):
    """A network on each window and its place about the highest point, twice (see the module), then the mean."""

    starts: Tensor

    def __init__(self, settings: Embedding, x_dim: int):
        super().__init__()
        self.item, self.step = settings.item, settings.step or settings.item
        width, whole = settings.width, settings.width + settings.item + x_dim
        self.window, self.place = nn.Linear(settings.item, width), nn.Linear(4, width, bias=False)
        self.top = nn.Linear(settings.item, width, bias=False)
        self.each = _dense([width] * settings.layers)
        self.again, self.whole, self.last = nn.Linear(width, width), nn.Linear(whole, width), nn.Linear(width, width)
        self.head = _dense([width + whole, width, settings.features])
        self.register_buffer("starts", torch.arange(0, x_dim - settings.item + 1, self.step), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        silu, start = nn.functional.silu, x.argmax(-1, keepdim=True) - self.item // 2
        top = x.gather(-1, (start + torch.arange(self.item, device=x.device)).clamp(0, x.shape[-1] - 1))
        found = self.window(x.unfold(-1, self.item, self.step)) + self.place(self._places(start))
        found = self.each(silu(found + self.top(top).unsqueeze(-2)))
        whole = torch.cat([found.mean(-2), top, x.sort(-1).values], dim=-1)
        found = silu(self.last(silu(self.again(found) + self.whole(whole).unsqueeze(-2))))
        return self.head(torch.cat([found.mean(-2), whole], dim=-1))

    def _places(self, start: Tensor) -> Tensor:
        """The signed distance of each window from the highest point: in logarithms (near windows) and linear (far ones)."""
        distance = (self.starts - start).float()
        near, side = distance.abs().log1p() / 2, distance.sign()
        return torch.stack([side, near, side * near, distance / self.starts[-1].clamp(min=1) * 2], dim=-1)


class Sorted(nn.Module):
    """The entries of x in ascending order; (n, m) -> (n, m)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values


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
    """The columns of a linear regression of theta on x: the moments of a set, the sorted entries for a peak, else x.

    Arguments:
        settings: the embedding.
        own: whether x is embedded by these settings and not by a module of the user's.
    """
    if own and settings.kind == "set":
        return Moments(settings.item, settings.step or settings.item)
    if own and settings.kind == "peak":
        return Sorted()
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
    if settings.kind == "patches":
        if x_dim <= settings.extra or (x_dim - settings.extra) % (settings.channels * settings.item):
            raise InputError(
                f"x of {x_dim} entries is not {settings.channels} series of patches of {settings.item} and "
                f"{settings.extra} more"
            )
        return _Patches(settings, x_dim)
    if settings.kind in ("set", "peak"):
        remainder = (x_dim - settings.item) % (settings.step or settings.item)
        if x_dim < settings.item or (remainder and not settings.step):
            raise InputError(f"x of {x_dim} entries cannot be cut into items of {settings.item}")
        return _Set(settings) if settings.kind == "set" else _Peak(settings, x_dim)
    return _dense([x_dim] + [settings.width] * settings.layers + [settings.features])
