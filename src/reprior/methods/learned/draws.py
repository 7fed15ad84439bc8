"""Base draws for the training set of a learned ratio, kept in a folder where one is given.

With the paper's settings (420,000 draws) they take most of the time, and they do not depend on the estimator. With a
folder, another estimator on the same base, or the rerun of an interrupted call, finds them there. The name of a file is a
fingerprint of all that its draws depend on: the base's denoised means at a few states of its observations, the sampler,
and the state of the generator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked
from reprior.methods.method import Problem
from reprior.methods.transport import Transported
from reprior.posterior import Posterior
from reprior.quadratic import Quadratic
from reprior.store import Store

__all__ = ["base_draws", "bound"]

BLOCK = 256  # observations drawn at once, and kept in one file


@torch.no_grad()
def bound(posterior: Posterior, x: Tensor, predict: bool, transported: Quadratic | None) -> Denoiser:
    """The base at standardised observations, with shape (K, m), transported where a part of log r is transported."""
    denoiser = posterior.base.condition(x.to(posterior.device), predict)
    return denoiser if transported is None else Transported(denoiser, transported)


def base_draws(
    problem: Problem,
    x: Tensor,
    draws: int,
    sampler: Sampler,
    generator: Generator,
    transported: Quadratic | None = None,
) -> Tensor:
    """Draws of the base at each observation, with shape (draws, K, D), standardised.

    Arguments:
        problem: the base posterior, which entries of x are observed, and the folder where draws are kept.
        x: standardised observations, with shape (K, m).
        draws: the number of draws for each.
        sampler: how they are drawn.
        generator: the source of randomness.
        transported: a part of log r that is transported: the draws are those of the transported base.
    """
    parts, store = [], problem.folder and Store(problem.folder, "draws")
    for some in x.split(BLOCK):
        denoiser = bound(problem.posterior, some, problem.observed is not None, transported)
        key = _key(denoiser, draws, sampler, generator) if store else {}
        kept = store and store.get(key)
        if kept:
            generator.set_state(kept.tensors["generator"])
            parts.append(kept.tensors["theta"])
            continue
        parts.append(chunked(denoiser, draws, sampler, generator).cpu())
        if store:
            store.put(key, {"theta": parts[-1], "generator": generator.get_state()})
    return torch.cat(parts, dim=1)


@torch.no_grad()
def _key(denoiser: Denoiser, draws: int, sampler: Sampler, generator: Generator) -> dict[str, Any]:
    """All that the draws depend on."""
    z = torch.linspace(-1, 1, 3 * denoiser.dim).reshape(3, 1, -1).expand(-1, denoiser.observations, -1).to(denoiser.x)
    levels = (denoiser.s_min, 0.3, 1.0, denoiser.s_max)
    means = [denoiser.mean(z, z.new_tensor(s)) for s in levels]
    return {"base": means, "levels": levels, "draws": draws, "sampler": sampler, "state": generator.get_state()}
