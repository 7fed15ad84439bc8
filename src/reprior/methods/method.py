"""What a method of changing the prior is: it takes a denoiser of p(theta | x) and gives one of q(theta | x).

`guide` does that for methods that work by guidance. Methods that work on a pool of base samples (importance
resampling, rejuvenation) override `draw`. Everything is in standardised units.
"""

from __future__ import annotations

import copy
from abc import ABC
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn

from reprior.diffusion.denoiser import Denoiser, Wrapped
from reprior.diffusion.sampler import Sampler, chunked
from reprior.errors import InputError

if TYPE_CHECKING:
    from reprior.posterior import Posterior

__all__ = ["GradientGuided", "Guidance", "NoGuidance", "check_learned"]


class Guidance(ABC):  # noqa: B024 (a method overrides guide or draw)
    """A way to change the prior.

    Attributes:
        name: the method's name.
        corrections: Langevin corrections that it needs after each step of the sampler.
        has_density: whether the guided denoiser is a fixed, differentiable function, so that its draws have a density.
    """

    name: str = ""
    corrections: int = 0
    has_density: bool = True

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        """The denoiser of q(theta | x) from that of p(theta | x).

        Arguments:
            denoiser: the base with K bound observations.
            generator: for methods that draw (a pool for the posterior's variance, Monte Carlo draws).
        """
        raise InputError(f"method {self.name!r} works on a pool of samples and gives no guided denoiser")

    def draw(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> tuple[Tensor, dict[str, Any]]:
        """Draws theta ~ q(theta | x), with shape (n, K, D), and what there is to say about it."""
        return chunked(self.guide(denoiser, generator), n, sampler, generator), {}

    def to(self, posterior: Posterior) -> Guidance:
        """The same guidance for the same posterior on another device: its networks are copied there."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, nn.Module):
                setattr(moved, name, copy.deepcopy(value).to(posterior.device))
            elif isinstance(value, Guidance):
                setattr(moved, name, value.to(posterior))
            elif name == "posterior":
                setattr(moved, name, posterior)
        return moved

    def config(self) -> dict[str, Any]:
        """The plain data that rebuilds the method, beside its tensors."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a learned method."""
        return {}


class NoGuidance(Guidance):
    """No change: q equals p, or the base is wanted for comparison."""

    name = "none"

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        return denoiser


class GradientGuided(Wrapped):
    """mean_q = mean_p + s^2 grad_z a(z, s): the score plus the gradient of a log ratio."""

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        """a(z, s), with shape (*, K).

        Arguments:
            z: noisy parameters, with shape (*, K, D), tracked by autograd.
            s: the noise level, broadcasting to (*, K, 1).
            mean: the base's denoised mean at z, tracked by autograd.
        """
        raise NotImplementedError

    needs_mean_gradient: bool = True

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        tracked = torch.is_grad_enabled() and z.requires_grad  # a density is asked for: it needs dmean/dz
        with torch.enable_grad():
            z = z if tracked else z.detach().requires_grad_(True)
            if self.needs_mean_gradient or tracked:
                mean = self.inner.mean(z, s)
            else:
                with torch.no_grad():
                    mean = self.inner.mean(z, s)
            a = self.log_ratio(z, s, mean)
            gradient = torch.zeros_like(z)
            if a.requires_grad:  # not where every mean lies outside q's support
                (gradient,) = torch.autograd.grad(a.sum(), z, create_graph=tracked)
            guided = mean + s**2 * gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return guided if tracked else guided.detach()


def check_learned(name: str, denoiser: Denoiser, dim: int, observed: list[bool] | None) -> None:
    """Refuses a question that a learned guidance was not trained for.

    Arguments:
        name: the method.
        denoiser: the base with its bound observations.
        dim: the number D of diffused variables in training.
        observed: the entries of x that were observed in training, m of them; all if None.
    """
    seen = ~torch.isnan(denoiser.x)
    wanted = torch.ones_like(seen[0]) if observed is None else torch.tensor(observed, device=seen.device)
    if denoiser.dim == dim and bool((seen == wanted).all()):
        return
    trained = "all of x" if observed is None else f"{sum(observed)} of {len(observed)} entries of x"
    what = "theta" if observed is None else "theta and the rest of x"
    raise InputError(
        f"method {name!r} was learned to draw {what} from {trained}, and something else is asked; adapt again, for "
        "`predict` with observed= (which entries of x are seen), or use transport, rejuvenate or sir"
    )
