"""Guidance by the gradient of a log ratio: what learned ratios, plug-in values and mixture fits have in common.

mean_q(z, s) = mean_p(z, s) + s^2 grad_z a(z, s),    a(z, s) = log E_p[r(theta_0) | z, x]
"""

from __future__ import annotations

import torch
from torch import Tensor

from reprior.diffusion.denoiser import Denoiser, Wrapped
from reprior.errors import InputError

__all__ = ["GradientGuided", "check_learned"]


class GradientGuided(Wrapped):
    """The score plus the gradient of a log ratio.

    Attributes:
        needs_mean_gradient: whether the log ratio depends on z through the denoised mean, too.
    """

    needs_mean_gradient: bool = True

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        """a(z, s), with shape (*, K).

        Arguments:
            z: noisy parameters, with shape (*, K, D), tracked by autograd.
            s: the noise level, broadcasting to (*, K, 1).
            mean: the base's denoised mean at z, tracked by autograd.
        """
        raise NotImplementedError

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        tracked = torch.is_grad_enabled() and z.requires_grad  # a log-density needs the derivative of the mean
        with torch.enable_grad():
            z = z if tracked else z.detach().requires_grad_(True)
            if self.needs_mean_gradient or tracked:
                mean = self.inner.mean(z, s)
            else:
                with torch.no_grad():
                    mean = self.inner.mean(z, s)
            a = self.log_ratio(z, s, mean)
            gradient = torch.zeros_like(z)
            if a.requires_grad:  # a is constant where every mean lies outside q's support
                (gradient,) = torch.autograd.grad(a.sum(), z, create_graph=tracked)
            guided = mean + s**2 * gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return guided if tracked else guided.detach()


def check_learned(name: str, denoiser: Denoiser, dim: int, observed: list[bool] | None) -> None:
    """Refuses a question that a learned method was not trained for.

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
        "`predict` with observed= (which entries of x are seen), or use a method that needs no training"
    )
