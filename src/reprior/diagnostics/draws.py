"""The draws for a report: base and adapted samples at one observation, and observations that are likely under q.

Adapted samples are drawn by the method directly, without the `Info` of `AdaptedPosterior.sample`, so that hundreds of
observations stay cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from reprior.adapted import AdaptedPosterior
from reprior.diffusion.sampler import Sampler, chunked
from reprior.errors import InputError
from reprior.methods.method import Method
from reprior.observations import likely_x

__all__ = ["Scene", "draw_adapted", "make_scene", "typical_x"]

FEWEST = 200  # adapted draws: with fewer, the error of a comparison is larger than its thresholds


@dataclass(frozen=True)
class Scene:
    """Samples at one observation.

    Attributes:
        x: the observation, with shape (1, m).
        base: draws of p(theta | x), with shape (pool, d).
        adapted: draws of the adapted posterior that are finite, with shape (n, d); none if it failed.
        log_r: log weights q/p of the base draws, with shape (pool,).
        log_r_adapted: log q/p of the adapted draws, with shape (n,).
        finite: the fraction of adapted draws that were finite; 0 if it failed.
        failed: why the method could not draw at all; empty if it could.
    """

    x: Tensor
    base: Tensor
    adapted: Tensor
    log_r: Tensor
    log_r_adapted: Tensor
    finite: float
    failed: str = ""

    @property
    def usable(self) -> bool:
        """Whether there are enough adapted draws to compare with anything."""
        return len(self.adapted) >= FEWEST


def draw_adapted(
    adapted: AdaptedPosterior,
    x: Tensor,
    n: int,
    sampler: Sampler,
    generator: Generator,
    method: Method | None = None,
) -> tuple[Tensor, float]:
    """Draws of the adapted posterior at K observations, with shape (n, K, d), inside the supports of p and q.

    Draws that are not finite are replaced by new ones. An observation that cannot be drawn is an error.

    Arguments:
        adapted: the adapted posterior.
        x: observations, with shape (K, m).
        n: draws for each.
        sampler: the sampler.
        generator: the source of randomness.
        method: another method in place of the adapted posterior's own.

    Returns: the draws, and the fraction of finite ones before any were replaced.
    """
    used = adapted if method is None else replace(adapted, method=method)
    if used.method.corrections and not sampler.corrections:
        sampler = replace(sampler, corrections=used.method.corrections)
    denoiser = used.posterior.condition(x)
    drawn = used.method.draw(denoiser, n, sampler, generator)
    finite = float(torch.isfinite(drawn.theta).all(-1).float().mean())
    theta, _, lost = used.fill(used.posterior.to_user(drawn.theta), denoiser, sampler, generator)
    for reason in (*drawn.failed.values(), *lost.values()):
        raise InputError(reason)
    return theta, finite


def make_scene(adapted: AdaptedPosterior, x: Tensor, pool: int, n: int, seed: int) -> Scene:
    """Draws base and adapted samples at one observation.

    Arguments:
        adapted: the adapted posterior.
        x: the observation, with shape (1, m).
        pool: the number of base draws.
        n: the number of adapted draws.
        seed: makes it repeatable.
    """
    generator = torch.Generator().manual_seed(seed)
    base = chunked(adapted.posterior.condition(x), pool, adapted.sampler, generator)
    base = adapted.posterior.to_user(base)[:, 0]
    failed = ""
    try:
        theta, finite = draw_adapted(adapted, x, n, adapted.sampler, generator)
        theta = theta[:, 0]
        theta = theta[torch.isfinite(theta).all(-1)]
        failed = "" if len(theta) else "no adapted sample is finite"
    except InputError as error:  # the method cannot make this change, and says why
        theta, finite, failed = base[:0], 0.0, str(error)
    log_r = adapted.change.log_w(adapted.change.scale.forward(base)).double()
    log_r_adapted = adapted.change.log_r(theta).double() if len(theta) else log_r[:0]
    return Scene(x, base, theta, log_r, log_r_adapted, finite, failed)


def typical_x(adapted: AdaptedPosterior, n: int, seed: int) -> Tensor:
    """Stored observations that are likely under q, with shape (n, m).

    Arguments:
        adapted: the adapted posterior, with its stored simulations.
        n: how many.
        seed: picks them.
    """
    simulations = adapted.posterior.simulations
    if simulations is None:
        raise InputError(
            "diagnose without an observation needs the stored simulations: give x, or attach them with "
            "posterior.with_simulations(theta, x) (on the command line: --x or --simulations)"
        )
    return likely_x(simulations, adapted.change, n, torch.Generator().manual_seed(seed))
