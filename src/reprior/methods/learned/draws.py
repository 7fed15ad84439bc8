"""Base draws for the training set of a learned guidance, kept in a folder where one is given.

They take most of the time that the paper's settings need (420,000 draws), and no estimator changes them: with a folder,
the next estimator on the same base, or a call that was cut off, finds them there. A file is named by all that its draws
depend on: what the base answers at a few states of its observations, the sampler, and the state of the generator.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Generator, Tensor

from reprior import io
from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked
from reprior.quadratic import Quadratic
from reprior.methods.transport import Transported
from reprior.posterior import Posterior
from reprior.trainer import fingerprint_of

__all__ = ["base_draws", "bound"]

BLOCK = 256  # observations drawn at once, and kept in one file


@torch.no_grad()
def bound(posterior: Posterior, x: Tensor, predict: bool, under: Quadratic | None) -> Denoiser:
    """The base at standardised observations, with shape (K, m), transported where a part of log r is taken over."""
    denoiser = posterior.base.condition(x.to(posterior.device), predict)
    return denoiser if under is None else Transported(denoiser, under)


def base_draws(
    posterior: Posterior,
    x: Tensor,
    draws: int,
    sampler: Sampler,
    generator: Generator,
    predict: bool,
    under: Quadratic | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Tensor:
    """Draws of the base at each observation, with shape (draws, K, D), standardised.

    Arguments:
        posterior: the base posterior.
        x: standardised observations, with shape (K, m).
        draws: the number of draws for each.
        sampler: how they are drawn.
        generator: the source of randomness.
        predict: whether the missing entries of x are drawn too.
        under: a part of log r that transport takes over: the draws are those of the transported base.
        cache: the folder where draws are kept and found again; none if not given.
    """
    parts = []
    for some in x.split(BLOCK):
        denoiser, path = bound(posterior, some, predict, under), None
        if cache is not None:
            path = Path(cache) / f"draws-{_mark(denoiser, draws, sampler, generator)}"
        if path is not None and io.resolve(path).exists():
            kept = io.read(path, "draws").tensors
            generator.set_state(kept["generator"])
            parts.append(kept["theta"])
            continue
        parts.append(chunked(denoiser, draws, sampler, generator).cpu())
        if path is not None:
            io.write(path, "draws", {"theta": parts[-1], "generator": generator.get_state()}, asdict(sampler))
    return torch.cat(parts, dim=1)


@torch.no_grad()
def _mark(denoiser: Denoiser, draws: int, sampler: Sampler, generator: Generator) -> str:
    """A hash of all that the draws depend on."""
    z = torch.linspace(-1, 1, 3 * denoiser.dim).reshape(3, 1, -1).expand(-1, denoiser.observations, -1).to(denoiser.x)
    answers = [denoiser.mean(z, z.new_tensor(s)) for s in (denoiser.s_min, 0.3, 1.0, denoiser.s_max)]
    plain = repr((sampler, draws, denoiser.s_min, denoiser.s_max)).encode()
    return fingerprint_of(*answers, generator.get_state(), torch.tensor(list(plain), dtype=torch.uint8))
