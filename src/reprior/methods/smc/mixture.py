"""The twist of a general log r: a sum of Gaussian parts in closed form, times a Monte Carlo average of what they leave.

With r ~ g = sum_c exp(Q_c), Q_c(theta) = -theta' L_c theta / 2 + h_c' theta + c_c, and theta_0 | z ~ N(D, V),

    E[r] = sum_c Z_c(D) E_c[r / g],      E_c over N(D_c, A_c),   A_c = (V^-1 + L_c)^-1,   D_c = A_c (V^-1 D + h_c)
    log Z_c(D) = c_c - log det(I + V L_c) / 2 + Q_c(D) + (h_c - L_c D)' A_c (h_c - L_c D) / 2

so the Gaussian parts go to where r is, and the average is of a ratio that varies little. Its draws D_c + A_c^1/2 eps use the
same eps for all particles, which makes psi a smooth function, and its gradient needs none of log r (Stein's identity):

    grad log E[w(D_c + R eps)] = R^-T E[w eps] / E[w],      R R' = A_c

Where p and q are Gaussian, or q a Gaussian mixture over a Gaussian p, psi is the closed form alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reprior.methods.smc.spread import Spread
from reprior.quadratic import Quadratic

__all__ = ["MixtureTwist", "common_draws"]

LEAST = -0.7  # eigenvalue of V^1/2 L V^1/2: where r grows too fast to have an expectation, this much of it counts
ROWS = 400_000  # points at which log r is asked at once


def common_draws(count: int, d: int) -> Tensor:
    """Standard normal points with mean zero, with shape (count, d): a scrambled Sobol sequence and its mirror image."""
    half = torch.quasirandom.SobolEngine(d, scramble=True, seed=0).draw((count + 1) // 2, dtype=torch.float64)
    eps = torch.special.ndtri(half.clamp(1e-6, 1 - 1e-6))
    eps = torch.cat([eps, -eps])[:count]
    return eps / eps.square().mean(0).sqrt()


class MixtureTwist:
    """The twist.

    Arguments:
        components: the Gaussian parts.
        log_r: standardised parameters, with shape (*, d), to log r, with shape (*); None if the parts are all of it.
        draws: of the Monte Carlo average.
    """

    def __init__(
        self, components: Sequence[Quadratic], log_r: Callable[[Tensor], Tensor] | None = None, draws: int = 64
    ):
        self.L = torch.stack([part.L for part in components]).double()  # (C, d, d)
        self.h = torch.stack([part.h for part in components]).double()
        self.c = torch.tensor([part.c for part in components], dtype=torch.float64)
        self.log_r = log_r
        d = self.h.shape[1]
        self.eps = common_draws(max(2, draws // len(components)), d) if log_r is not None else None

    def covers(self, points: Tensor) -> bool:
        """Whether it holds at points, with shape (n, d): it does everywhere."""
        return True

    def minus(self, part: Quadratic) -> MixtureTwist:
        """The twist of what a Gaussian part leaves of log r."""
        left = copy.copy(self)
        left.L, left.h, left.c = self.L - part.L, self.h - part.h, self.c - part.c
        log_r = self.log_r
        if log_r is not None:
            left.log_r = lambda theta: log_r(theta) - part(theta.double())
        return left

    def parts(self, theta: Tensor) -> Tensor:
        """log g, with shape (*), at theta with shape (*, d)."""
        flat = theta.reshape(-1, theta.shape[-1])
        # One product of matrices for all parts, in the precision of theta.
        bend = (flat @ self.L.to(flat).movedim(0, 1).flatten(1)).reshape(len(flat), *self.h.shape)
        value = flat @ self.h.to(flat).T - 0.5 * (bend @ flat.unsqueeze(-1))[..., 0] + self.c.to(flat)
        return torch.logsumexp(value, -1).reshape(theta.shape[:-1])

    def bind(self, spread: Spread) -> Callable[[Tensor, float, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """The twist for K observations, from (denoised mean, noise, z)."""
        d = self.h.shape[1]
        kept: dict[float, tuple[Tensor, ...]] = {}

        def matrices(s: float) -> tuple[Tensor, ...]:
            if s not in kept:
                kept.clear()
                kept[s] = self._matrices(spread.cov(s)[:, :d, :d])
            return kept[s]

        def twist(mean: Tensor, s: float, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            L, shape, A, det, back, root = matrices(s)
            theta = mean[..., :d].double()
            # The gradient of log Z_c is (I + L V)^-1 (h - L D), and -L (I + V L)^-1 its slope.
            bent = torch.einsum("nkd,kcde->nkce", theta, L)
            slope = self.h - bent
            value = self.c - 0.5 * det + ((self.h - 0.5 * bent) * theta.unsqueeze(2)).sum(-1)
            moved = torch.einsum("nkcd,kcde->nkce", slope, A)
            value = value + 0.5 * (moved * slope).sum(-1)
            push = torch.einsum("nkce,kced->nkcd", slope, back)
            if self.log_r is not None:
                more, steer = self._rest(theta.unsqueeze(2) + moved, root)
                value, push = value + more, push + torch.einsum("nkce,kced->nkcd", steer, back)
            total = torch.logsumexp(value, -1)
            share = torch.softmax(value, -1).nan_to_num(nan=1 / value.shape[-1])
            curve = -torch.einsum("kc,kcde->kde", share.mean(0), shape)
            return total, (share.unsqueeze(-1) * push).sum(2), curve

        twist.costly = self.log_r is not None  # pyright: ignore[reportFunctionMemberAccess]
        return twist

    def _matrices(self, V: Tensor) -> tuple[Tensor, ...]:
        """What a noise level needs: L, L (I + V L)^-1, A, log det(I + V L), (I + V L)^-1 and the root of A, (K, C, ...)."""
        values, axes = torch.linalg.eigh(V)
        half = (axes * values.clamp(min=1e-16).sqrt().unsqueeze(1)) @ axes.mT
        half, inverse = half.unsqueeze(1), torch.linalg.inv(half).unsqueeze(1)
        inner, frame = torch.linalg.eigh(half @ self.L @ half)
        inner = inner.clamp(min=LEAST)
        L = inverse @ (frame * inner.unsqueeze(-2)) @ frame.mT @ inverse
        root = half @ frame * (1 + inner).rsqrt().unsqueeze(-2)
        A = root @ root.mT
        eye = torch.eye(V.shape[-1], dtype=V.dtype)
        back = eye - A @ L  # A V^-1 = (I + V L)^-1
        return L, L @ back, A, torch.log1p(inner).sum(-1), back, root

    def _rest(self, centre: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """log E_c[r / g] and its gradient in D_c, with shapes (n, K, C) and (n, K, C, d)."""
        assert self.log_r is not None
        assert self.eps is not None
        d = centre.shape[-1]
        offset = torch.einsum("kcde,me->kcmd", root, self.eps)  # (K, C, M, d)
        inverse = torch.linalg.inv(root)
        rows = max(1, ROWS // offset[..., 0].numel())
        value, slope = [], []
        for part in centre.split(rows):
            theta = (part.unsqueeze(3) + offset).float()
            flat = theta.reshape(-1, d)
            left = (self.log_r(flat) - self.parts(flat)).double().reshape(theta.shape[:-1])
            left = left.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
            top = left.amax(-1, keepdim=True).clamp(min=-1e30)
            w = (left - top).exp()
            total = w.sum(-1, keepdim=True)
            value.append((top + total.log())[..., 0] - torch.log(torch.tensor(float(len(self.eps)))))
            towards = torch.einsum("nkcm,md->nkcd", w / total.clamp(min=1e-300), self.eps)
            slope.append(torch.einsum("nkcd,kcde->nkce", towards, inverse))
        return torch.cat(value), torch.cat(slope)
