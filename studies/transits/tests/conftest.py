"""Simulated stars with trapezoidal transits: their depth, period and epoch are known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from reprior_transits.photometry import LightCurve, from_arrays

CADENCE = 120 / 86400
torch.set_num_threads(1)  # two threads on two busy cores spin, and results would depend on the load


@dataclass(frozen=True)
class Star:
    """A star observed every two minutes; its transits are trapezoids of duration t14 with slopes of t12."""

    period: float = 3.3
    epoch: float = 1.234
    depth: float = 0.01
    t14: float = 0.14
    t12: float = 0.02
    noise: float = 0.001
    wave: float = 0.0  # amplitude of a slow variation with a period of 6 d
    level: float = 5000.0

    def transit(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        away = np.abs((time - self.epoch + self.period / 2) % self.period - self.period / 2)
        return 1 - self.depth * np.clip((self.t14 / 2 - away) / self.t12, 0, 1)

    def observe(
        self,
        seed: int,
        start: float = 0.0,
        days: float = 27.0,
        gap: tuple[float, float] = (13.0, 14.0),
        sector: int = 1,
    ) -> LightCurve:
        time = np.arange(start, start + days, CADENCE)
        time = time[(time < start + gap[0]) | (time > start + gap[1])]
        noise = self.noise * np.random.default_rng(seed).standard_normal(len(time))
        wave = 1 + self.wave * np.sin(2 * np.pi * time / 6)
        flux = self.level * wave * (self.transit(time) + noise)
        return from_arrays(time, flux, sector=sector, name="simulated")


@pytest.fixture
def star() -> type[Star]:
    return Star
