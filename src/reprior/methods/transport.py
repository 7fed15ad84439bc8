"""Transport: a Gaussian change of prior is a change of noise. Exact, no training, no gradient.

Write z = theta_0 + N(0, S). If log r(theta) = -theta' L theta / 2 + h' theta + c, then weighting by r multiplies the
Gaussian N(z; theta_0, S) by another Gaussian in theta_0, and

    E_q[theta_0 | z, S, x] = E_p[theta_0 | z', S', x],    S'^-1 = S^-1 + L,    z' = S' (S^-1 z + h)

so the guided denoiser is the base denoiser evaluated at another point z' and another noise S'. The base must have been
trained with that kind of noise: one scalar level if L is a multiple of I, one level per parameter if L is diagonal, a
full covariance for any other L. Where q is wider than p in some direction, L has a negative eigenvalue, and S' exists
only at noise low enough that S^-1 + L is positive.

A mixture q = sum_k w_k N_k over a Gaussian p is drawn component by component, with weights w_k E_p(theta|x)[N_k / p].
Where few base draws lie in a component, its weight is found by tempering. With r_k = N_k / p and powers
0 = b_0 < b_1 < ... < 1, transport draws from p(theta|x) r_k^b, and E_p(theta|x)[r_k] is the product over the steps of the
mean of r_k^(b_{i+1} - b_i) over the draws at b_i.

The isotropic case (L a multiple of I) is that of Spectra (arXiv 2610.08021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import NOISE_KINDS, Denoiser, Wrapped, finer
from reprior.diffusion.sampler import Sampler, chunked
from reprior.errors import InputError, RefusedError
from reprior.methods.method import Drawn, Method, Problem
from reprior.methods.plug_in import SOME_DRAWS, posterior_draws
from reprior.methods.registry import find
from reprior.quadratic import Quadratic
from reprior.weights import relative_ess, temper_step

__all__ = ["Transport", "TransportSettings", "Transported", "largest_noise", "why_not"]

FAR = 4.0  # training has z / sqrt(1 + s^2) of about unit variance, so a value beyond 4 was hardly ever seen
MARGIN = 0.8  # we start at this fraction of the noise where S^-1 + L becomes singular, to stay clear of it
START = 3.0  # posterior standard deviations: noise from which the reverse process loses memory of its start
INSIDE = 0.1  # if less of a posterior than this fraction lies inside q's bounds, redrawing is slow: the fallback draws
COMPONENT_EFFECTIVE = (
    200  # effective draws: with fewer, the weight of a component is off by over 7 %, so it is tempered
)
COMPONENT_ESS = 0.2  # relative ESS that a step of this tempering keeps
COMPONENT_STEPS = 32  # sampler steps of the draws that give component weights: averages over draws need no more
LIGHT_PROBES = 30  # draws from which a calibration estimates each posterior width, to about 13 %


class Transported(Wrapped):
    """The denoiser of p(theta | x) exp(quadratic): the base evaluated at z' and S'.

    Arguments:
        inner: the denoiser of p(theta | x).
        quadratic: log r, or a part of it, in standardised units.
    """

    def __init__(self, inner: Denoiser, quadratic: Quadratic):
        top = float(torch.linalg.eigvalsh(quadratic.L).max())
        super().__init__(inner if top <= 0 else finer(inner, top**-0.5))
        like = inner.x
        d, extra = len(quadratic.h), inner.dim - len(quadratic.h)
        self.shape = "diagonal" if extra and quadratic.shape == "scalar" and quadratic.curved else quadratic.shape
        L = torch.nn.functional.pad(quadratic.L, (0, extra, 0, extra))
        self.L = L.to(like.device)  # double precision: S^-1 + L cancels where q is wider than p
        self.l = self.L.diagonal()
        self.h = torch.nn.functional.pad(quadratic.h, (0, extra)).to(like.device)
        self.s_max = min(inner.s_max, largest_noise(quadratic))
        self.eye = torch.eye(d + extra, dtype=torch.float64, device=like.device)

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        s = torch.as_tensor(s, device=z.device).double()
        if self.shape == "full":
            level = s if s.ndim == 0 else s[..., :1, None] if s.shape[-1] == 1 else s.unsqueeze(-1)
            precision = self.eye / level**2 + self.L
            cov = torch.linalg.inv(precision)
            moved = torch.einsum("...ij,...j->...i", cov, z.double() / s**2 + self.h)
            return self.inner.mean_full(moved.to(z.dtype), cov.to(z.dtype))
        diagonal = self.l[:1] if self.shape == "scalar" else self.l
        var = 1 / (1 / s**2 + diagonal)
        moved = var * (z.double() / s**2 + self.h)
        return self.inner.mean(moved.to(z.dtype), var.sqrt().to(z.dtype))

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        inverse = torch.linalg.inv(cov.double())
        mixed = torch.linalg.inv(inverse + self.L)
        point = torch.einsum("...ij,...j->...i", inverse, z.double()) + self.h
        moved = torch.einsum("...ij,...j->...i", mixed, point)
        return self.inner.mean_full(moved.to(z.dtype), mixed.to(z.dtype))


def largest_noise(quadratic: Quadratic) -> float:
    """The largest noise at which S^-1 + L is positive and z' stays where the base was trained."""
    values, vectors = torch.linalg.eigh(quadratic.L)
    h = vectors.T @ quadratic.h
    lowest = float(values.min())
    ceiling = MARGIN / math.sqrt(-lowest) if lowest < 0 else math.inf
    for s in torch.logspace(2, -3, 200, dtype=torch.float64).tolist():
        if s >= ceiling:
            continue
        var = 1 / (1 / s**2 + values)
        # z' = S' (S^-1 z + h). Its part S' h does not depend on z and is compared with the spread of z in training. We
        # compare along the parameters, because the eigenvectors of L are arbitrary where its eigenvalues are equal.
        shift, spread = vectors @ (var * h), vectors.square() @ var
        if bool((shift.abs() <= FAR * torch.sqrt(1 + spread)).all()):
            return s
    return 1e-3


def why_not(quadratics: list[Quadratic] | None, noise: str, predicted: bool = False) -> str:
    """Why transport cannot do this change with this base, in plain words; empty if it can.

    Arguments:
        quadratics: the change, from `PriorChange.quadratics`.
        noise: the noise the base was trained with.
        predicted: whether entries of x are predicted, whose noise the change leaves as it is.
    """
    if quadratics is None:
        return "log q/p is not quadratic (transport needs Gaussian priors, or a Gaussian mixture over a Gaussian)"
    shapes = [q.shape for q in quadratics]
    if predicted and any(q.curved for q in quadratics):
        shapes.append("diagonal")
    finest = max(shapes, key=NOISE_KINDS.index)
    if NOISE_KINDS.index(finest) > NOISE_KINDS.index(noise):  # pyright: ignore[reportArgumentType]
        return f"this change needs a base trained with noise={finest!r}; this one has noise={noise!r}"
    return ""


@dataclass(frozen=True)
class TransportSettings:
    """Settings of transport.

    Attributes:
        probes: the number of base draws from which the width of a posterior is estimated.
        component_draws: the number of base draws from which the weights of mixture components are estimated.
    """

    probes: int = SOME_DRAWS
    component_draws: int = 4_000

    def __post_init__(self) -> None:
        if self.probes < 10 or self.component_draws < 100:
            raise InputError(f"transport needs probes >= 10 and component_draws >= 100; got {self}")


class Transport(Method):
    """Transport: the base evaluated at another point and another noise. Isotropic case: Spectra (arXiv 2610.08021).

    Arguments:
        problem: the base and the change of prior.
        settings: how many draws estimate a width and a weight.
        fallback: the method that draws at observations where transport cannot: the posterior (or predictive) is too wide
            for the noise that transport can start at, or mostly outside q's bounds. Without one, the former are refused.
    """

    name = "transport"
    summary = "exact for Gaussian changes: the base evaluated at another point and noise"
    Settings = TransportSettings
    settings: TransportSettings

    def __init__(self, problem: Problem, settings: TransportSettings | None = None, fallback: Method | None = None):
        super().__init__(problem, settings)
        self.fallback = fallback
        quadratics = self.change.quadratics
        reason = why_not(quadratics, problem.posterior.base.noise)
        if reason or quadratics is None:
            raise RefusedError(f"transport cannot make this change of prior: {reason}")
        self.quadratics = quadratics

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        if len(self.quadratics) > 1:
            raise RefusedError("a mixture is drawn component by component; there is no single guided denoiser")
        refused = self.refused(denoiser, generator)
        if refused:
            raise RefusedError(next(iter(refused.values())))
        return Transported(denoiser, self.quadratics[0])

    def refused(self, denoiser: Denoiser, generator: Generator) -> dict[int, str]:
        """The bound observations that transport cannot start at, each with the reason."""
        predicted = denoiser.dim > len(self.quadratics[0].h)
        reason = why_not(self.quadratics, denoiser.noise, predicted)
        if reason:
            return dict.fromkeys(range(denoiser.observations), f"transport cannot make this change of prior: {reason}")
        starts = [min(denoiser.s_max, largest_noise(quadratic)) for quadratic in self.quadratics]
        if min(starts) >= denoiser.s_max:  # transport can start where the base starts
            return {}
        draws = posterior_draws(denoiser, generator, self.settings.probes)
        spread = draws.std(0)  # of all that is diffused: the parameters, and the predicted entries of x
        widths = spread.amax(-1).tolist()
        wide = ["posterior" if i < len(self.quadratics[0].h) else "predictive of x" for i in spread.argmax(-1).tolist()]
        out = {}
        for quadratic, start in zip(self.quadratics, starts, strict=True):
            lowest = float(torch.linalg.eigvalsh(quadratic.L).min())
            cause = (
                f"q is wider than p (by curvature {lowest:.3g}), so the transported noise exists only"
                if lowest < -1e-6
                else "the shift is so large that the transported point stays in the trained range only"
            )
            for k, width in enumerate(widths):
                if start < min(START * width, denoiser.s_max):
                    out[k] = (
                        f"transport cannot make this change of prior alone: {cause} below noise {start:.3g}, and the "
                        f"{wide[k]} is {width:.3g} wide (standardised units). Use method='rejuvenate', which starts "
                        "below that"
                    )
        return out

    def draw(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> Drawn:
        refused, failed = self.refused(denoiser, generator), {}
        if self.fallback is not None and self.change.cuts:
            refused |= self._cut_away(denoiser, generator)
        theta = denoiser.x.new_full((n, denoiser.observations, denoiser.dim), torch.nan)
        weights = theta.new_full((len(self.quadratics), denoiser.observations), torch.nan)
        possible = [k for k in range(denoiser.observations) if k not in refused]
        if possible:
            some = denoiser.select(possible) if refused else denoiser
            theta[:, possible], weights[:, possible] = self._transport(some, n, sampler, generator)
        done = ["the base was evaluated at another point and noise, which is exact for this change"] * theta.shape[1]
        for k, reason in refused.items():
            if self.fallback is None:
                done[k], failed[k] = "not drawn", reason
                continue
            drawn = self.fallback.draw(denoiser.select(k), n, sampler, generator)
            theta[:, k] = drawn.theta[:, 0]
            done[k] = f"drawn by {self.fallback.name}, as {reason.split('. ', 1)[0]}"
            if drawn.failed:
                failed[k] = drawn.failed[0]
        figures = {f"weight of component {j + 1}": tuple(w.tolist()) for j, w in enumerate(weights)}
        return Drawn(theta, None, tuple(done), failed, figures if len(weights) > 1 else {})

    def _cut_away(self, denoiser: Denoiser, generator: Generator) -> dict[int, str]:
        """The bound observations whose posterior lies mostly outside q's bounds, where redrawing would be too slow."""
        draws = posterior_draws(denoiser, generator, self.settings.probes)
        inside = torch.isfinite(self.change(draws[..., : len(self.quadratics[0].h)])).double().mean(0).tolist()
        return {
            k: "q's bounds cut most of its posterior away" for k, fraction in enumerate(inside) if fraction < INSIDE
        }

    def lighter(self, draws: int = 200) -> Method:
        settings = TransportSettings(LIGHT_PROBES, min(draws, self.settings.component_draws))
        return Transport(self.problem, settings, self.fallback and self.fallback.lighter(draws))

    def config(self) -> dict[str, Any]:
        fallback = self.fallback and {"name": self.fallback.name, "config": self.fallback.config()}
        return super().config() | {"fallback": fallback}

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.fallback is None else self.fallback.tensors()

    @classmethod
    def rebuild(cls, problem: Problem, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Method:
        kept = config["fallback"]
        fallback = kept and find(kept["name"]).rebuild(problem, kept["config"], tensors)
        return cls(problem, TransportSettings(**config["settings"]), fallback or None)

    def _transport(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> tuple[Tensor, Tensor]:
        """n draws at each observation, and the weights of the components, with shape (components, K)."""
        if len(self.quadratics) == 1:
            theta = chunked(Transported(denoiser, self.quadratics[0]), n, sampler, generator)
            return theta, theta.new_ones(1, theta.shape[1])
        coarse = replace(sampler, steps=min(sampler.steps, COMPONENT_STEPS))
        pool = chunked(denoiser, self.settings.component_draws, coarse, generator)
        log_z = torch.stack([self._weigh(denoiser, q, pool, coarse, generator) for q in self.quadratics])
        weights = torch.softmax(log_z, 0)  # (components, K)
        pick = torch.multinomial(weights.T, n, replacement=True, generator=generator).T.to(pool.device)
        theta = pool.new_empty(n, *pool.shape[1:])
        for c, quadratic in enumerate(self.quadratics):
            chosen = pick == c  # (n, K)
            counts = chosen.sum(0).tolist()
            if max(counts) == 0:
                continue
            draws = chunked(Transported(denoiser, quadratic), max(counts), sampler, generator)
            for k, count in enumerate(counts):
                theta[chosen[:, k], k] = draws[:count, k]
        return theta, weights.to(theta)

    @staticmethod
    def _weigh(
        denoiser: Denoiser, quadratic: Quadratic, pool: Tensor, sampler: Sampler, generator: Generator
    ) -> Tensor:
        """log E_p(theta|x)[exp(quadratic)], with shape (K,), from base draws, with shape (n, K, D)."""
        log_w = quadratic(pool).cpu()
        n, log_z = len(pool), torch.logsumexp(log_w, 0) - math.log(len(pool))
        for k in range(log_w.shape[1]):
            now, power, total = log_w[:, k], 0.0, 0.0
            if n * relative_ess(now) >= COMPONENT_EFFECTIVE:
                continue
            one = denoiser.select(k)
            while power < 1:
                step = temper_step(now, 1 - power, COMPONENT_ESS)
                total += float(torch.logsumexp(step * now, 0)) - math.log(n)
                power = power + step if step < 1 - power else 1.0
                if power < 1:
                    now = quadratic(chunked(Transported(one, quadratic.scaled(power)), n, sampler, generator))[
                        :, 0
                    ].cpu()
            log_z[k] = total
        return log_z
