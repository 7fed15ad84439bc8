"""Paths from noise to theta_0: where particles start, what weighs them, and a small pilot that finds the best.

The process may begin at any noise s0, from base draws with noise s0 added, with the first weight psi(z, s0): it is exact
from anywhere. From high up some hundred draws make a start for any number of particles, and what no pool holds is found;
from low down particles stay near the pool, so they cannot run away where the base extrapolates, but the pool must reach q. A
few particles try some starts and twists, and the one with the best product of relative ESS along the path (of the first
weights, and of the rest) is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked, randn
from reprior.diffusion.schedule import noise_grid
from reprior.methods.smc.sampler import Particles, columns, twisted
from reprior.methods.smc.spread import Spread
from reprior.quadratic import Quadratic

__all__ = ["STARTS", "Path", "Route", "best_path", "copies", "descend", "groups_of", "path_ess"]

STARTS = (10.0, 1.0, 0.4)  # in posterior widths
POOLED = 3.0  # posterior widths, below which a start needs a base draw for each particle
POOL_SAMPLER = Sampler(steps=24)
FINE, GOOD = 0.3, 0.7  # product of relative ESS at which no other twist, and no other start, is tried
RHO = 20.0  # of the grid: nearly equal steps in log s
RANGE = (10.0, 0.002)  # noise levels between which the number of steps is stated
GROUPS, LEAST = 16, 64  # groups of particles, of so many at least
BLOCK = 100_000  # particles of all observations that go down together: bounds the memory


@dataclass(frozen=True)
class Route:
    """What particles are guided and weighted by.

    Attributes:
        region: log r (or what is left of it) with its trusted region.
        lowest: the lowest log p that counts.
        twist: that of log r, not yet bound.
        told: what the twist is, in a few words.
        part: what transport took over of log r; None if nothing.
    """

    region: Any
    lowest: float
    twist: Any
    told: str
    part: Quadratic | None = None

    def log_r(self, theta: Tensor) -> Tensor:
        """log r within the trusted region, with shape (*), of theta with shape (*, D)."""
        return self.region.log_r(theta, self.lowest)


@dataclass(frozen=True)
class Path:
    """Where particles go down.

    Attributes:
        denoiser: the base, or a transported one, with K bound observations.
        route: what they are weighted by.
        probes: some draws of it, with shape (m, K, D).
        spread: how wide these are.
        s0: the noise where they start.
        steps: noise levels, as many as from 10 down to .002.
        base: the base under a transported one, with its spread.
    """

    denoiser: Denoiser
    route: Route
    probes: Tensor
    spread: Spread
    s0: float
    steps: int
    base: tuple[Denoiser, Spread] | None = None

    def select(self, k: int) -> Path:
        """That of one observation."""
        one = torch.tensor([k])
        return replace(
            self, denoiser=self.denoiser.select(k), probes=self.probes[:, one], spread=self.spread.select(one)
        )


def groups_of(count: int) -> int:
    """In how many groups so many particles live."""
    return max(1, min(GROUPS, count // LEAST))


def descend(path: Path, count: int, generator: Generator, groups: int) -> Particles:
    """A pass of so many particles, some groups at a time.

    Arguments:
        path: the path.
        count: how many particles, a multiple of ``groups``.
        generator: the source of randomness.
        groups: in how many groups.
    """
    denoiser, s0 = path.denoiser, path.s0
    size = count // groups
    pool = path.probes
    if groups > 1 and s0 < POOLED * float(path.spread.width.max()):
        pool = chunked(denoiser, count, POOL_SAMPLER, generator)
    z = noisy(pool, count, s0, generator)
    twist, grid = path.route.twist.bind(path.spread), grid_from(denoiser, s0, path.steps)
    together, parts = max(1, BLOCK // (size * denoiser.observations)), []
    for first in range(0, groups, together):
        some = min(together, groups - first)
        rows = slice(first * size, (first + some) * size)
        parts.append(twisted(denoiser, twist, path.route.log_r, path.spread, z[rows], grid, generator, some))
    return Particles.joined(parts)


def best_path(
    best: tuple[float, Path, Particles] | None,
    paths: list[Path],
    count: int,
    generator: Generator,
    enough: float = FINE,
) -> tuple[float, Path, Particles]:
    """The best path for one observation, with its score and its pilot: the first that is fine, else the best of all.

    Arguments:
        best: the best of before; None if there was none.
        paths: the paths to try, in that order.
        count: particles of a pilot.
        generator: the source of randomness.
        enough: the score that is fine.
    """
    for path in paths:
        if best is not None and best[0] >= enough:
            break
        tried = descend(path, count, generator, 1)
        score = float(path_ess(tried))
        if best is None or score > best[0]:
            best = (score, path, tried)
    assert best is not None
    return best


def grid_from(denoiser: Denoiser, s0: float, steps: int) -> Tensor:
    """Noise levels from s0 to the lowest one of the base."""
    low = min(denoiser.s_min, s0 / 4)
    count = max(6, math.ceil(steps * math.log(s0 / low) / math.log(RANGE[0] / RANGE[1])))
    return noise_grid(s0, low, count, RHO)


def noisy(pool: Tensor, n: int, s0: float, generator: Generator) -> Tensor:
    """n states at noise s0 about base draws, with shape (m, K, D), each used as often as the others."""
    m = len(pool)
    order = torch.stack([torch.randperm(m, generator=generator) for _ in range(pool.shape[1])], 1)
    z = columns(pool, order.repeat(math.ceil(n / m), 1)[:n])
    return z + s0 * randn(z, generator)


def path_ess(particles: Particles) -> Tensor:
    """The product of the relative ESS at each resampling and in the end, with shape (K,)."""
    log_w, groups = particles.log_w, len(particles.group_log_z)
    w = (log_w - log_w.amax(0).clamp(min=-1e300)).exp().reshape(groups, -1, log_w.shape[1])
    last = (w.sum(1).square() / w.square().sum(1).clamp(min=1e-300) / w.shape[1]).mean(0)
    share = particles.resampled / groups
    return last * (particles.ess.clamp(min=1e-12).log() * share).sum(0).exp()


def copies(log_w: Tensor, ratio: float) -> Tensor:
    """The part of the draws that would be copies with ``ratio`` particles for a draw, with shape (K,), from weights (n, K)."""
    w = torch.softmax(log_w, 0) * len(log_w)
    return ratio * (w / ratio - 1).clamp(min=0).mean(0)
