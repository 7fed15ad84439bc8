"""The network of a learned method: (theta_t, x, t) -> a log ratio, or a correction of the denoised mean.

A plain MLP on the concatenation of theta_t = z / sqrt(1 + s^2) (the VP state at that noise), features of x, and time
features. Its first layer is a sum of three linear maps, so what x and the noise contribute is computed once per
observation and once per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from reprior.diffusion.schedule import VP
from reprior.errors import InputError

__all__ = ["RatioMLP", "RatioNetworkSettings"]


@dataclass(frozen=True)
class RatioNetworkSettings:
    """Architecture of a guidance network.

    Attributes:
        width: the hidden width.
        layers: the number of hidden layers.
        time: "fourier" (Gaussian Fourier features of VP time, as in the paper) or "log" (smooth features of log s).
        time_features: the number of time features.
        precision: of the matrix products of hidden layers in a training step, "float32" or "bfloat16": faster where the
            processor has such products, slower where it has not. Weights, held-out losses and the trained network
            are float32.
    """

    width: int = 128
    layers: int = 3
    time: Literal["fourier", "log"] = "log"
    time_features: int = 8
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.time not in ("fourier", "log"):
            raise InputError(f"time {self.time!r} is unknown; allowed: fourier, log")
        if self.precision not in ("float32", "bfloat16"):
            raise InputError(f"precision {self.precision!r} is unknown; allowed: float32, bfloat16")
        if min(self.width, self.layers) < 1 or self.time_features < 2 or self.time_features % 2:
            raise InputError(
                f"a ratio network needs width, layers >= 1 and an even number of time features; got {self}"
            )


class RatioMLP(nn.Module):
    """The MLP.

    Arguments:
        dim: the number D of diffused variables.
        x_features: the size of the features of x.
        outputs: 1 for a log ratio, D for a correction of the mean.
        settings: the architecture.
    """

    frequencies: Tensor

    def __init__(self, dim: int, x_features: int, outputs: int, settings: RatioNetworkSettings):
        super().__init__()
        self.settings, self.dim, self.x_features, self.outputs = settings, dim, x_features, outputs
        width = settings.width
        self.from_z = nn.Linear(dim, width)
        self.from_x = nn.Linear(x_features, width, bias=False)
        self.from_time = nn.Linear(settings.time_features, width, bias=False)
        self.hidden = nn.ModuleList([nn.Linear(width, width) for _ in range(settings.layers - 1)])
        self.out = nn.Linear(width, outputs)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        if settings.time == "fourier":
            self.register_buffer("frequencies", torch.randn(settings.time_features // 2))
        else:
            self.register_buffer("frequencies", 0.35 * torch.arange(1, settings.time_features // 2 + 1).float())
        self.eval()  # the training loop switches to training mode

    def time(self, s: Tensor) -> Tensor:
        """Time features of noise levels with shape (*, 1), with shape (*, time_features)."""
        t = VP().t(s) * (2 * math.pi) if self.settings.time == "fourier" else s.log()
        angles = t * self.frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, z: Tensor, s: Tensor, code: Tensor) -> Tensor:
        """The outputs, with shape (*, K, outputs).

        Arguments:
            z: noisy parameters, with shape (*, K, D).
            s: noise levels, with shape (), (1,) or (*, K, 1).
            code: `encode` of x, with shape (K, width).
        """
        s = s.reshape(1) if s.ndim == 0 else s
        h = self.from_z(z / torch.sqrt(1 + s**2)) + (self.from_time(self.time(s)) + code)
        low = self.training and self.settings.precision == "bfloat16"
        with torch.autocast(z.device.type, torch.bfloat16, enabled=low):  # first and last layer stay in float32
            for layer in self.hidden:
                h = layer(nn.functional.silu(h))
        return self.out(nn.functional.silu(h.to(z.dtype)))

    def encode(self, features: Tensor) -> Tensor:
        """The contribution of features of x, with shape (K, x_features), to the first layer, with shape (K, width)."""
        return self.from_x(features)
