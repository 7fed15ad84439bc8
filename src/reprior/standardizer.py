"""The standardisation of theta and x.

`Standardizer` maps values to unit scale, u = (v - shift) / scale, with one shift and scale for each column, or one for all
columns if these must stay comparable. Plain: mean and standard deviation. Robust: median and half the central 68.3 % range,
which are the same for a Gaussian and ignore tails. In units of a robust scale outliers can be very large (thousands in
series that explode), so they can be compressed:

    u -> sign(u) (c + log(1 + |u| - c))   for |u| > c = 5,

which is invertible and has a continuous derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["Standardizer"]

_THRESHOLD = 5.0  # c, in units of the scale: a Gaussian value lies beyond it once in two million
_CELLS = 4_000_000  # values that are sorted together, which bounds the memory
_QUANTILES = (0.158655, 0.841345)  # -1 and +1 standard deviations of a Gaussian


@dataclass(frozen=True, eq=False)
class Standardizer:
    """An invertible map of each column to unit scale; NaN stays NaN.

    Arguments:
        shift: What is subtracted, with shape (k,).
        scale: What it is then divided by, positive, with shape (k,).
        compress: Whether values further than 5 units out are compressed.
    """

    shift: Tensor
    scale: Tensor
    compress: bool = False

    def __post_init__(self) -> None:
        if self.shift.ndim != 1 or self.shift.shape != self.scale.shape:
            raise InputError(
                f"shift has shape {tuple(self.shift.shape)} and scale {tuple(self.scale.shape)}: both must be (k,)."
            )
        if not bool(self.shift.isfinite().all()):
            raise InputError(f"shift is {self.shift.tolist()}: it must be finite.")
        if not bool((self.scale.isfinite() & (self.scale > 0)).all()):
            raise InputError(f"scale is {self.scale.tolist()}: it must be positive and finite.")

    @classmethod
    def fit(cls, values: Tensor, robust: bool = False, compress: bool = False, pooled: bool = False) -> Standardizer:
        """The standardizer of a set of values; NaN is left out, and constant columns get scale 1.

        Arguments:
            values: Values, with shape (n, k).
            robust: Median and central 68.3 % range instead of mean and standard deviation.
            compress: Whether to compress values further than 5 units out.
            pooled: One shift and scale for all columns, for columns that are to stay comparable.
        """
        if values.ndim != 2 or values.numel() == 0:
            raise InputError(f"values has shape {tuple(values.shape)}: it must be (n, k), neither 0.")
        if bool(values.isinf().any()):
            raise InputError("values hold infinity: drop those rows first.")
        wide = values.detach().cpu()
        if pooled:
            wide = wide.reshape(-1, 1)
        at_once = max(1, _CELLS // len(wide))  # columns: sorting takes several times their memory
        parts = [_column_scales(part.double(), robust) for part in wide.split(at_once, dim=1)]
        shift, scale = (torch.cat(part) for part in zip(*parts, strict=True))
        # Below the resolution of float32 at this magnitude there is no variation, only rounding.
        resolution = torch.finfo(torch.float32).eps * shift.abs()
        scale = torch.where(scale > resolution, scale, torch.ones_like(scale))
        columns = values.shape[1]
        return cls(shift.expand(columns).clone().to(values), scale.expand(columns).clone().to(values), compress)

    def forward(self, values: Tensor) -> Tensor:
        """Raw values to standard ones.

        Arguments:
            values: Values, with shape (*, k).
        """
        u = (values - self.shift) / self.scale
        if not self.compress:
            return u
        excess = (u.abs() - _THRESHOLD).clamp(min=0)
        return u.clamp(-_THRESHOLD, _THRESHOLD) + u.sign() * excess.log1p()

    def inverse(self, values: Tensor) -> Tensor:
        """Standard values back to raw ones.

        Arguments:
            values: Standard values, with shape (*, k).
        """
        u = values
        if self.compress:
            excess = (u.abs() - _THRESHOLD).clamp(min=0)
            u = u.clamp(-_THRESHOLD, _THRESHOLD) + u.sign() * excess.expm1()
        return self.shift + self.scale * u

    def to(self, device: torch.device | str) -> Standardizer:
        """The same map on another device.

        Arguments:
            device: Where its tensors go.
        """
        return replace(self, shift=self.shift.to(device), scale=self.scale.to(device))


def _column_scales(wide: Tensor, robust: bool) -> tuple[Tensor, Tensor]:
    """Shift and scale of each column; NaN is left out."""
    shift = wide.nanmean(dim=0).nan_to_num()  # 0 for a column of NaN only
    scale = (wide - shift).square().nanmean(dim=0).sqrt().nan_to_num()
    if robust:
        low, middle, high = _quantiles(wide, (_QUANTILES[0], 0.5, _QUANTILES[1]))
        spread = (high - low) / 2
        # A column that is mostly one value has no central range: keep its standard deviation.
        scale = torch.where(spread > 0, spread, scale)
        shift = middle
    return shift, scale


def _quantiles(values: Tensor, levels: Sequence[float]) -> list[Tensor]:
    """Quantiles of each column, linear between neighbours, NaN left out (0 for a column of NaN only).

    By sorting: torch.nanquantile refuses more than 16 million values.
    """
    ordered = values.sort(dim=0).values  # NaN goes last
    last = ((~values.isnan()).sum(dim=0) - 1).clamp(min=0)
    result = []
    for level in levels:
        position = level * last.double()
        below = position.floor().long()
        above = torch.minimum(below + 1, last)
        low, high = ordered.gather(0, torch.stack([below, above]))
        result.append(torch.lerp(low, high, position - below).nan_to_num())
    return result
