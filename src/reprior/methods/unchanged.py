"""No change: for q = p, or to compare with the base."""

from __future__ import annotations

from torch import Generator

from reprior.diffusion.denoiser import Denoiser
from reprior.methods.method import Method

__all__ = ["NoChange"]


class NoChange(Method):
    """The base posterior as it is."""

    name = "none"
    summary = "no change: the base posterior as it is"

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        return denoiser
