"""Twisted sequential Monte Carlo along the reverse diffusion: guidance proposes, weights correct.

Noisy parameters z = theta_0 + s eps go down a grid of noise levels s_0 > s_1 > ... by the base's own kernel

    z' ~ N(m, v),    m = k z + (1 - k) D*,    k = (s' / s)^2,    v = s'^2 (1 - k)

with D* the denoised mean, extrapolated from the last two steps (second order; the state of the chain is z with the mean
before). The twist psi(z, s) stands for E_p[r(theta_0) | z, x]. Particles are proposed from the kernel tilted by the next
twist, log psi' about the mean of the step (its slope and its curvature), and weighted by

    psi(z', s') / psi(z, s)  x  N(z'; m, v) / proposal(z')

with r(theta_0) / psi in the end. Where the effective number of particles falls below half, they are resampled
(systematically). As the number of particles grows this draws from p~(theta | x) r, with p~ what the base draws with
that grid, whatever the twist: a bad twist costs particles, not truth. The mean weight is an unbiased estimate of
Z(x) = E_p(theta|x)[r].

Particles live in groups that never mix: what they tell of log Z differs from group to group, which is the standard error.

Wu, Trippe, Naesseth, Blei, Cunningham (2023), Practical and asymptotically exact conditional sampling in diffusion
models, arXiv 2306.17775 (twisted diffusion sampler); Whiteley, Lee (2014), Twisted particle filters, arXiv 1210.0220;
Lu et al. (2022), DPM-Solver++, arXiv 2211.01095 (the second-order SDE step).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import ROWS, randn
from reprior.methods.smc.spread import Spread

__all__ = ["Particles", "Twist", "columns", "twisted"]

RESAMPLE = 0.5  # relative ESS below which particles are resampled
WIDEST = 0.5  # of the precision of the kernel, that a twist may take away

# From (denoised mean, noise, z): log psi, with shape (n, K), its slope in each denoised parameter, with shape (n, K, d), and
# its curvature, with that shape, or one matrix for all particles, with shape (K, d, d). Where ``of_state`` is set on it, slope
# and curvature are those in z; where ``costly`` is, a step is guided by the twist of its beginning;
# ``finish``, if it is there, makes the last step (`ProductTwist.finish`).
Twist = Callable[[Tensor, float, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Particles:
    """What a pass leaves.

    Attributes:
        theta: particles, with shape (n, K, D).
        log_w: their log weights, with shape (n, K), in double precision; the mean of exp is an estimate of Z(x).
        group_log_z: the log of that mean in each group, with shape (groups, K).
        ess: relative ESS before each decision to resample, with shape (steps, K); the mean over groups.
        resampled: how many groups were resampled in each step, with shape (steps, K).
    """

    theta: Tensor
    log_w: Tensor
    group_log_z: Tensor
    ess: Tensor
    resampled: Tensor

    def column(self, k: int) -> Particles:
        """Those of one observation."""
        return Particles(
            self.theta[:, [k]], self.log_w[:, [k]], self.group_log_z[:, [k]], self.ess[:, [k]], self.resampled[:, [k]]
        )

    @classmethod
    def joined(cls, parts: Sequence[Particles]) -> Particles:
        """Passes of separate groups as one."""
        if len(parts) == 1:
            return parts[0]
        sizes = torch.tensor([len(part.group_log_z) for part in parts], dtype=torch.float64).reshape(-1, 1, 1)
        return cls(
            torch.cat([part.theta for part in parts]),
            torch.cat([part.log_w for part in parts]),
            torch.cat([part.group_log_z for part in parts]),
            (torch.stack([part.ess for part in parts]) * sizes).sum(0) / sizes.sum(),
            torch.stack([part.resampled for part in parts]).sum(0),
        )


@torch.no_grad()
def twisted(
    denoiser: Denoiser,
    twist: Twist,
    log_r: Callable[[Tensor], Tensor],
    spread: Spread,
    z: Tensor,
    grid: Tensor,
    generator: Generator,
    groups: int = 1,
) -> Particles:
    """One pass from noise grid[0] to theta_0.

    Arguments:
        denoiser: the base with K bound observations.
        twist: gives log psi, with shape (n, K), and its slope and curvature in each denoised parameter, with shape
            (n, K, d), from denoised means, with shape (n, K, D), and the noise level.
        log_r: the last log weight, with shape (n, K), of theta_0; -inf where there is no mass.
        spread: how wide theta_0 is given z.
        z: draws of the base at noise grid[0], with shape (n, K, D).
        grid: falling noise levels, with shape (steps,).
        generator: a CPU generator.
        groups: in how many groups, of n / groups particles each, the particles live.
    """
    levels = [float(s) for s in grid]
    now = _mean(denoiser, z, levels[0])
    value, slope, curve = twist(now, levels[0], z)
    looks_ahead = not getattr(twist, "costly", False)
    of_state = getattr(twist, "of_state", False)
    log_w, before, h_before = value.clone(), now, 1.0
    ess, resampled = [], []
    for i, s in enumerate(levels[:-1]):
        index, log_w, e, m = _resample(log_w, groups, generator)
        ess.append(e)
        resampled.append(m)
        if index is not None:
            z, now, before, value, slope = (columns(a, index) for a in (z, now, before, value, slope))
            curve = columns(curve, index) if curve.shape == slope.shape else curve
        s_next = levels[i + 1]
        h = math.log(s / s_next)
        k = (s_next / s) ** 2
        var = s_next**2 * (1 - k)
        # Half a step ahead in a smooth path; a little less, as the path is rough (exact for Gaussians of any width).
        ahead = 0.0 if i == 0 else h / h_before * (0.5 - 0.17 * h_before + 0.15 * h_before**2)
        middle = k * z + (1 - k) * (now + ahead * (now - before))
        if looks_ahead:
            _, slope, curve = twist(now, s_next, z)
        gain = (
            torch.eye(z.shape[-1], dtype=torch.float64).expand(z.shape[1], -1, -1) if of_state else spread.slope(s_next)
        )
        step, log_ratio = _propose(slope, curve, gain, var, middle, generator)
        log_w += log_ratio
        z, before, h_before = middle + step, now, h
        now = _mean(denoiser, z, s_next)
        then, slope, curve = twist(now, s_next, z)
        log_w, value = log_w + then - value, then
    finish = getattr(twist, "finish", None)
    if finish is not None:
        rows = max(1, ROWS // z.shape[1])
        done = [finish(part, levels[-1], generator) for part in now.split(rows)]
        last, ratio = torch.cat([part[0] for part in done]), torch.cat([part[1] for part in done])
        now = torch.cat([last.to(now), now[..., last.shape[-1] :]], -1)
        log_w = log_w + ratio
    log_w = (log_w + log_r(now).double() - value).nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
    grouped = log_w.reshape(groups, -1, log_w.shape[1])
    group_log_z = torch.logsumexp(grouped, 1) - math.log(grouped.shape[1])
    return Particles(now, log_w, group_log_z, torch.stack(ess), torch.stack(resampled))


def _mean(denoiser: Denoiser, z: Tensor, s: float) -> Tensor:
    """The denoised mean, some rows at a time."""
    level = z.new_tensor(s)
    return torch.cat([denoiser.mean(part, level) for part in z.split(max(1, ROWS // z.shape[1]))])


def _propose(
    slope: Tensor, curve: Tensor, gain: Tensor, var: float, like: Tensor, generator: Generator
) -> tuple[Tensor, Tensor]:
    """A step away from the mean of the kernel N(m, var), from the kernel tilted by the next twist.

    The denoised mean of the next step is that of this one plus gain (z' - m), which makes log psi' quadratic in z'.

    Arguments:
        slope: of log psi' in the denoised parameters, with shape (n, K, d).
        curve: its curvature, with shape (n, K, d), or a matrix that all particles share, with shape (K, d, d).
        gain: dD/dz, with shape (K, D, D).
        var: the variance of the kernel.
        like: the mean of the kernel, with shape (n, K, D).
        generator: the source of randomness.

    Returns: the step, with shape (n, K, D), and log kernel - log proposal, with shape (n, K).
    """
    d = slope.shape[-1]
    gain = gain[:, :d].to(slope)  # (K, d, D)
    push = torch.einsum("nki,kij->nkj", slope, gain)
    fresh = randn(like, generator)
    if curve.shape == slope.shape:
        bend = torch.einsum("nki,kij->nkj", curve, gain.square())
        wide = 1 / (1 - (var * bend).clamp(max=WIDEST))
        step = (var * wide * push).to(like) + (var * wide).sqrt().to(like) * fresh
        log_wide = wide.log().sum(-1)
    else:
        values, axes = torch.linalg.eigh(var * gain.mT @ curve @ gain)
        wide = 1 / (1 - values.clamp(max=WIDEST))  # (K, D)
        along = torch.einsum("nki,kij->nkj", var * push, axes) * wide + (var * wide).sqrt() * fresh
        step = torch.einsum("nkj,kij->nki", along, axes).to(like)
        log_wide = wide.log().sum(-1)
    return step, 0.5 * (log_wide + (fresh**2 - step**2 / var).sum(-1, dtype=torch.float64))


def _resample(log_w: Tensor, groups: int, generator: Generator) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Systematic resampling of the groups that need it.

    Returns: indices with shape (n, K), or None; the log weights after it; relative ESS and groups resampled, with shape (K,).
    """
    n, observations = log_w.shape
    size = n // groups
    grouped = log_w.reshape(groups, size, observations)
    top = grouped.amax(1, keepdim=True)
    alive = torch.isfinite(top)
    w = torch.where(alive, (grouped - top).exp(), torch.zeros_like(grouped))
    total = w.sum(1, keepdim=True)
    ess = torch.where(alive, total.square() / w.square().sum(1, keepdim=True) / size, torch.zeros_like(total))
    need = alive & (ess < RESAMPLE)  # (groups, 1, K)
    told = (ess.mean(0)[0], need.sum(0)[0])
    if not bool(need.any()):
        return None, log_w, *told
    # A whole column at a time: (groups, K, size).
    share = (w / total.clamp(min=1e-300)).transpose(1, 2).cumsum(-1)
    start = torch.rand(groups, observations, 1, generator=generator, dtype=torch.float64)
    points = (torch.arange(size, dtype=torch.float64) + start) / size
    pick = torch.searchsorted(share.contiguous(), points).clamp(max=size - 1).transpose(1, 2)
    kept = torch.arange(size).reshape(1, size, 1)
    pick = torch.where(need, pick, kept) + size * torch.arange(groups).reshape(groups, 1, 1)
    level = top + (total / size).log()
    after = torch.where(need, level.expand_as(grouped), grouped)
    return pick.reshape(n, observations), after.reshape(n, observations), *told


def columns(values: Tensor, index: Tensor) -> Tensor:
    """values[index[i, k], k], for values with shape (n, K, *) and indices with shape (m, K)."""
    return values[index, torch.arange(index.shape[1])]
