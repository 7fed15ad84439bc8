"""An sbi estimator (NPSE or FMPE) as a base: E[theta_0 | z, x] from its score or its velocity.

With u the units that sbi diffuses in, y = theta_t / m the noisy state and s = sigma / m its noise (`sbi_noise`),

    NPSE: E[u_0 | y] = y + s^2 m score(m y, x, t)
    FMPE: E[u_0 | y] = (m y - sigma v(m y, x, t)) / (1 + e),      since v = E[eps - u_0] and sigma = t + e

The FMPE line is exact at every t. sbi's own `score` divides by zero at t = 1, and it is wrong by a factor 1 + e.

sbi adds the same noise to every parameter in the user's own units, whatever their scales, unless it was trained with
``compose_standardization``. So that one noise level s is one level in reprior's units, too, these have one common unit for
all parameters: u = shift + unit * theta, and the widest parameter has standard deviation one.

x is embedded once per observation (sbi embeds it at every step).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from reprior.diffusion.denoiser import Base, Denoiser, NoiseKind
from reprior.errors import InputError
from reprior.integrations.sbi_noise import noise_of
from reprior.standardizer import Standardizer

__all__ = ["SbiBase"]

S_MIN = 1e-3  # in spreads of the narrowest parameter: the sampler never needs to end at lower noise
S_MAX = 40.0  # in spreads of the widest parameter: the sampler never needs to start at higher noise
FEATURE_ROWS = 2_000  # simulations from which the scale of the embedding is estimated, to about 2 %


class SbiBase(Base):
    """A base around the estimator of an sbi posterior; the estimator is copied, and sbi's own is left alone.

    Arguments:
        estimator: the estimator, with its embedding net inside.
        unit: one of reprior's units of theta, in the units that sbi diffuses in.
        narrowest: the spread of the narrowest parameter in reprior's units.
    """

    offset: Tensor
    x_shift: Tensor
    x_scale: Tensor
    feature_shift: Tensor
    feature_scale: Tensor

    def __init__(self, estimator: Any, unit: float, narrowest: float = 1.0):
        super().__init__()
        if len(estimator.input_shape) != 1:
            raise InputError(f"theta must be a vector; this estimator has shape {tuple(estimator.input_shape)}")
        self.process = noise_of(estimator)
        own = copy.deepcopy(estimator).eval().requires_grad_(False)
        self.x_shape = torch.Size(own.condition_shape)
        self.embedding: nn.Module = own.embedding_net
        self.estimator = own
        with torch.no_grad():
            code = self.embedding(torch.zeros(2, *self.x_shape, device=next(own.buffers()).device))
        own._embedding_net = nn.Identity()  # x reaches the copy already embedded
        own._condition_shape = code.shape[1:]
        self.dim, self.x_dim = int(own.input_shape[0]), self.x_shape.numel()
        self.noise: NoiseKind = "scalar"
        self.unit, self.narrowest = unit, narrowest
        self.s_min = max(self.process.lowest / unit, S_MIN * narrowest)
        self.s_max = min(self.process.highest / unit, S_MAX)
        self.register_buffer("offset", torch.zeros(self.dim))
        self.register_buffer("x_shift", torch.zeros(self.x_dim))
        self.register_buffer("x_scale", torch.ones(self.x_dim))
        self.register_buffer("feature_shift", torch.zeros(code[0].numel()))
        self.register_buffer("feature_scale", torch.ones(code[0].numel()))

    @classmethod
    def create(cls, estimator: Any, theta: Tensor, x: Tensor) -> tuple[SbiBase, Standardizer, Standardizer]:
        """The base of a trained estimator, and the standardisation of theta and of x that goes with it.

        Arguments:
            estimator: the estimator of the sbi posterior.
            theta: simulated parameters, with shape (n, d).
            x: their data, with shape (n, m).
        """
        theta_scale, unit, offset = _units(estimator, theta)
        x_scale = Standardizer.fit(x, robust=True)
        narrowest = float(theta_scale.forward(theta).std(0).min().clamp(max=1.0))
        base = cls(estimator, unit, narrowest).to(next(estimator.buffers()).device)
        base.offset.copy_(offset)
        base.x_shift.copy_(x_scale.shift)
        base.x_scale.copy_(x_scale.scale)
        base._standardise_features(x_scale.forward(x))
        return base, theta_scale, x_scale

    @torch.no_grad()
    def _standardise_features(self, x: Tensor) -> None:
        rows = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:FEATURE_ROWS]]
        spread = Standardizer.fit(self.embed(rows.to(self.offset.device)).flatten(1).cpu())
        self.feature_shift.copy_(spread.shift)
        self.feature_scale.copy_(spread.scale)

    def embed(self, x: Tensor) -> Tensor:
        """The embedding of standardised x, with shape (K, m); shape (K, ...)."""
        raw = (self.x_shift + self.x_scale * x).reshape(-1, *self.x_shape)
        code = self.embedding(raw)
        if bool(torch.isnan(code).any()):
            raise InputError("x has missing entries (NaN), which this sbi posterior cannot take")
        return code

    def features(self, x: Tensor) -> Tensor:
        """The estimator's own embedding of x, standardised, with shape (K, e)."""
        return (self.embed(x).flatten(1) - self.feature_shift) / self.feature_scale

    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        if predict:
            raise InputError("an sbi posterior cannot predict x; train network='simformer' with reprior.train")
        return _BoundSbi(self, x, self.embed(x))

    def denoise(self, z: Tensor, s: Tensor, code: Tensor) -> Tensor:
        """E[theta_0 | z, x] from embedded x.

        Arguments:
            z: noisy parameters, with shape (*, K, d).
            s: noise levels in double precision, broadcasting to (*, K).
            code: embedded observations, with shape (K, ...).
        """
        level = self.unit * s
        asked = level.clamp(self.process.lowest, min(self.process.highest, 1e3 * S_MAX * self.unit))
        # Above the trained noise the mean is linear in z / s^2: evaluate at the highest level with z scaled to the same
        # z / s^2. Below the lowest level the score is taken not to change.
        shrink = (asked / level).square().clamp(max=1.0).unsqueeze(-1).to(z)
        keep = (level / asked).square().clamp(max=1.0).unsqueeze(-1).to(z)
        t, m = self.process.at(asked)
        y = self.offset + self.unit * (shrink * z)
        mean = self._mean(y, t, m, asked, code)
        mean = (mean - self.offset) / self.unit
        return torch.where(keep < 1, z + keep * (mean - z), mean)

    def _mean(self, y: Tensor, t: Tensor, m: Tensor, s: Tensor, code: Tensor) -> Tensor:
        theta_t = m.unsqueeze(-1).to(y) * y
        time = t.to(y)
        if self.process.kind == "flow":
            v = self.estimator(input=theta_t, condition=code, time=time)
            return (theta_t - (s * m).unsqueeze(-1).to(y) * v) / (1 + self.process.extra)
        score = self.estimator.score(input=theta_t, condition=code, t=time)
        return y + (s**2 * m).unsqueeze(-1).to(y) * score

    def to_estimator(self) -> Any:
        """A copy of the estimator as sbi knows it, with its embedding net inside."""
        own = copy.deepcopy(self.estimator)
        own._embedding_net = copy.deepcopy(self.embedding)
        own._condition_shape = self.x_shape
        return own

    def config(self) -> dict:
        from reprior.integrations.sbi_rebuild import describe

        return describe(self)


class _BoundSbi(Denoiser):
    """An sbi base with its observations, which are embedded once."""

    def __init__(self, base: SbiBase, x: Tensor, code: Tensor):
        self.base, self.x, self.code = base, x, code
        self.dim, self.noise = base.dim, base.noise
        self.s_min, self.s_max = base.s_min, base.s_max
        self.observations = len(x)

    def select(self, k: int | list[int]) -> Denoiser:
        rows = [k] if isinstance(k, int) else k
        return _BoundSbi(self.base, self.x[rows], self.code[rows])

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        s = torch.as_tensor(s, device=z.device).double()
        if s.ndim > 0 and s.shape[-1] != 1:
            raise InputError(
                f"sbi posteriors are trained with noise='scalar'; noise of shape {tuple(s.shape)} has one level per parameter"
            )
        level = s if s.ndim == 0 else s[..., 0]
        return self.base.denoise(z, level, self.code).reshape(z.shape)


def _units(estimator: Any, theta: Tensor) -> tuple[Standardizer, float, Tensor]:
    """reprior's standardisation of theta, and u = offset + unit * (standardised theta)."""
    if estimator.compose_enabled:
        shift, scale = estimator._theta_shift.detach().cpu()[0], estimator._theta_scale.detach().cpu()[0]
        return Standardizer(shift, scale), 1.0, torch.zeros_like(shift)
    fitted = Standardizer.fit(theta)
    unit = float(fitted.scale.max())
    if not math.isfinite(unit):
        raise InputError("theta has an infinite spread")
    return Standardizer(fitted.shift, torch.full_like(fitted.scale, unit)), unit, fitted.shift
