"""Rejuvenation: resample, noise, denoise. No training.

A pool of base samples is resampled with weights r, which settles the large scale, where guidance is hard. Noise of level
s0 melts the duplicates, and the guided reverse process from s0 turns the noisy pool into fresh samples: below s0 a
simple guidance is accurate. Where the weights would collapse, p goes to q in steps r^b1, r^b2, ..., r, each with
the same move, so that no step loses more than a set part of the pool.

The guidance below s0 is transport where log r is quadratic and the base can express it (exact), else the anchor, or a
learned ratio if one is given. Where log r is not quadratic and little of the pool would be left, transport takes over
a Gaussian part of the change, and the rest is made as before, on the transported base. s0 is as large as the
resampling needs (a pool of few effective members must be melted further), and no larger than the guidance is valid:
s0^2 |Hessian of log r| about 1/2 for the anchor. The mean of a resampled pool, sum W theta, is off by e with
e^2 = sum W^2 (theta - mean)^2, and a process that starts from it at noise s0 keeps 1 / sqrt(1 + (s0 / w)^2) of that, w the
width; transport, exact at every noise it allows, starts high enough to leave next to nothing of it.

Where log r has no gradient, q's bounds cut the posterior, or log r is far more curved in one part of it than in another (a
spike on a slab, the core of a heavy-tailed q), the noisy pool is denoised without guidance (or by transport), and each move
is accepted or not by what is left of r (`reprior.methods.metropolis`): a draw that ends outside must not be dropped, or the
edge would be emptied, and one noise level does not suit an anchor in both parts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from reprior_bench import metrics
from reprior.change import PriorChange
from reprior.diffusion.denoiser import STEP, Denoiser
from reprior.diffusion.sampler import ROWS, Sampler, chunked, randn, run
from reprior.errors import InputError, RefusedError
from reprior.methods.plug_in import AnchorGuided, precision_of
from reprior.methods.method import Guidance
from reprior.methods.sir import check_mass, systematic
from reprior.methods.metropolis import sweep
from reprior.methods.pools import curvature, curvatures, mean_error, spread_of, typical_members
from reprior.quadratic import find_quadratic, local_part
from reprior.methods.transport import START, Transported, largest_noise, why_not
from reprior.weights import largest_step

__all__ = ["RejuvenateGuidance", "RejuvenateSettings"]

BELOW = ("choose", "transport", "anchor", "metropolis", "learned")
POOL_STEPS = 32  # what is noised and denoised again gains nothing from a finer pool
SPARE = 0.2  # where some weights are zero, more draws by this part, in place of those that end outside
LOW = 0.3  # ESS/N below which it is tried whether transport can take over a part of the change
GAIN = 2.0  # and how much of it that must gain
REFITS, PROBE = 5, 2_000  # how often such a part is fitted, to so many draws
AGAIN = 5  # how often more are drawn where that was not enough
LEFT = 0.03  # of a posterior standard deviation: what may be left of the error of a resampled pool's mean
UNEVEN = 4.0  # how many times more curved log r may be elsewhere than it typically is, for an anchor
MISSED = 0.002  # the share of q(theta | x) that a Gaussian part of the change may leave out of reach
FINER = 2  # times as many steps, where a move is a draw of the reverse process: its SDE needs more than the ODE


@dataclass(frozen=True)
class RejuvenateSettings:
    """Settings of rejuvenation.

    Attributes:
        pool: the number of base draws.
        s0: the noise level, in standardised units (lowered where transport does not reach that far); 0 chooses it
            from the ESS and the curvature of log r.
        steps: the least number of sampler steps from s0 down (more from a high s0, twice as many where moves are accepted
            or not).
        below: what guides below s0: "choose" (transport if exact, else the anchor, else accept or not), "transport",
            "anchor", "metropolis" (accept or not), or "learned" (a ratio that is trained first, by nre with its
            defaults; tempered steps before the last are the anchor's).
        sweeps: how often each member is moved, in each tempered step, where moves are accepted or not.
        ess: a step of tempering keeps at least this ESS/N; one step is enough where the whole change does.
        stages: the largest number of tempering steps.
    """

    pool: int = 10_000
    s0: float = 0.0
    steps: int = 14
    below: Literal["choose", "transport", "anchor", "metropolis", "learned"] = "choose"
    sweeps: int = 8
    ess: float = 0.1
    stages: int = 12

    def __post_init__(self) -> None:
        if self.below not in BELOW:
            raise InputError(f"below={self.below!r} is unknown; allowed: {', '.join(BELOW)}")
        least = min(self.pool / 100, self.steps / 2, self.sweeps, self.stages)
        if least < 1 or self.s0 < 0 or not 0 < self.ess < 1:
            raise InputError(
                "rejuvenate needs pool >= 100, s0 >= 0, steps >= 2, sweeps >= 1, 0 < ess < 1, stages >= 1; "
                f"got {asdict(self)}"
            )


class RejuvenateGuidance(Guidance):
    """Rejuvenation.

    Arguments:
        change: the change of prior.
        noise: the noise the base was trained with.
        settings: the settings.
        learned: a learned guidance, for below="learned".
    """

    name = "rejuvenate"

    def __init__(
        self,
        change: PriorChange,
        noise: str,
        settings: RejuvenateSettings | None = None,
        learned: Guidance | None = None,
    ):
        self.change, self.noise, self.settings = change, noise, settings or RejuvenateSettings()
        self.learned = learned
        self.quadratic = find_quadratic(change)
        reason = why_not([self.quadratic] if self.quadratic.exact else None, noise)
        below = self.settings.below
        gradient = self.quadratic.exact or change.differentiable
        if below == "choose":
            below = "transport" if not reason else "anchor" if gradient else "metropolis"
        if below == "transport" and reason:
            raise RefusedError(f"rejuvenate cannot guide by transport: {reason}")
        if below == "learned" and learned is None:
            raise InputError("rejuvenate with below='learned' needs a learned guidance")
        if below == "anchor" and not gradient:
            raise RefusedError(
                "the anchor guides by the gradient of log r, and this one has none; use below='metropolis'"
            )
        self.below = below
        # Before the last step a learned ratio leaves the guidance to the anchor: without one there is a single step.
        self.stages = self.settings.stages if gradient or below == "metropolis" else 1

    def draw(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> tuple[Tensor, dict[str, Any]]:
        pools = chunked(denoiser, self.settings.pool, replace(sampler, steps=min(sampler.steps, POOL_STEPS)), generator)
        least = self.change.least_log_p(pools)
        log_w = self.change.log_w(pools, least).cpu()
        check_mass(log_w)
        out, told = [], []
        for k in range(pools.shape[1]):
            one = denoiser.select(k)
            under = self._under(one, pools[:, k], log_w[:, k], least[k], sampler, generator)
            if under is None:
                theta, more = self._move(one, pools[:, k], log_w[:, k], least[k], n, generator)
            else:
                rest, moved, pool, left = under
                theta, more = rest._move(moved, pool, left, least[k], n, generator)
                more["ess_under_transport"] = metrics.ess(_weights(left))
            out.append(theta)
            told.append({"ess": metrics.ess(log_w[:, k]), **more})
        names = dict.fromkeys(name for more in told for name in more)
        return torch.stack(out, 1), {name: [more.get(name) for more in told] for name in names} | {"log_w": log_w}

    def _under(
        self, denoiser: Denoiser, pool: Tensor, log_w: Tensor, least: Tensor, sampler: Sampler, generator: Generator
    ) -> tuple[RejuvenateGuidance, Denoiser, Tensor, Tensor] | None:
        """Rejuvenation of what is left of the change when transport takes over a Gaussian part of it.

        The part is fitted to log r about where the weights of a pool are, and again at what it gave, as long as that keeps
        more. It is worth it where q is narrow: it would leave few members of the pool of p, and allow little noise to
        melt them.

        Returns: the guidance for the rest, the transported denoiser, its pool, and the log weights of that; or None.
        """
        first, first_pool = _weights(log_w), pool
        log_w, ess = first, metrics.ess(first)
        best = ess
        if self.settings.below != "choose" or self.below == "transport" or self.quadratic.exact or ess > LOW:
            return None
        d, found, log_r = len(self.quadratic.h), None, first
        steps = replace(sampler, steps=min(sampler.steps, POOL_STEPS))
        for _ in range(REFITS):
            weight = torch.softmax(largest_step(log_w, 1.0, self.settings.ess) * log_w, 0)
            part = local_part(pool[:, :d].cpu(), log_r, weight, self.noise)
            if part is None or why_not([part], self.noise, denoiser.dim > d):
                break
            moved, rest = Transported(denoiser, part), self.change.without(part)
            if moved.s_max < min(START * float(pool.std(0).max()), denoiser.s_max):
                break
            pool = chunked(moved, min(self.settings.pool, PROBE), steps, generator)[:, 0]
            log_w, log_r = (_weights(change.log_w(pool, least).cpu()) for change in (rest, self.change))
            now = metrics.ess(log_w) if bool(torch.isfinite(log_w).any()) else 0.0
            if now <= best:
                break
            found, best = (moved, rest), now
            if now > LOW:
                break
        if found is None or best < GAIN * ess:
            return None
        moved, rest = found
        pool = chunked(moved, self.settings.pool, steps, generator)[:, 0]
        left = rest.log_w(pool, least).cpu()
        # A part with lighter tails than q leaves weights that grow without bound out there, where its draws do not go.
        beyond = _weights(rest.log_w(first_pool, least).cpu()) > _weights(left).max()
        if float(torch.softmax(first, 0)[beyond].sum()) > MISSED:
            return None
        return RejuvenateGuidance(rest, self.noise, self.settings), moved, pool, left

    def _move(
        self, denoiser: Denoiser, pool: Tensor, log_w: Tensor, least: Tensor, n: int, generator: Generator
    ) -> tuple[Tensor, dict[str, Any]]:
        """From a pool of p(theta | x), with shape (pool, D), to n draws of q(theta | x), and what there is to say."""
        power, stages, s0, told = 0.0, 0, 0.0, {}
        source = members = root = pool
        precision = precision_of(pool.unsqueeze(1), len(self.quadratic.h))  # of p(theta | x)
        first = log_w = _weights(log_w)
        cut = bool((self.change(pool) == -torch.inf).any())
        how = self._how(denoiser, pool, first, cut)
        walks = how == "metropolis" or (cut and how == "transport")  # moves are accepted or not: none ends outside
        some = not bool(torch.isfinite(first).all())  # cut, or a few draws beyond all that the base has learned
        spare = int(SPARE * n) + 10 if some and not walks else 0
        while power < 1:
            stages += 1
            rise = largest_step(log_w, 1 - power, self.settings.ess) if stages < self.stages else 1 - power
            power = min(1.0, power + rise)
            kept = n + spare if power == 1 else len(pool)
            members = rise * log_w
            index = systematic(members, kept, generator)
            spread = spread_of(pool, members)
            # What a step keeps still descends from few members of the first pool, unless noise melts them together.
            ess = min(metrics.ess(members), metrics.ess(power * first))
            error = torch.maximum(mean_error(pool, members), mean_error(root, power * first))
            d = len(self.quadratic.h)
            if walks:  # long moves, shortened where few are accepted: short ones follow the base's least certain score
                need = float(spread[:d].mean())
            else:
                need = self._forget(spread[:d], error[:d]) if how == "transport" else 0.0
            s0 = self._level(denoiser, how, pool[index[:64]], spread, ess * len(pool), power, need)
            if walks:
                pool, s0, accepted = self._walk(denoiser, how, pool[index], least, s0, power, generator)
                told = {"accepted": accepted, "duplicates": len(pool) - len(pool.unique(dim=0))}
            else:
                source, pool = pool, self._melt(denoiser, how, pool[index], s0, precision, power, generator)
            log_w = self.change.log_w(pool, least).cpu()
            if power < 1:
                check_mass(log_w.unsqueeze(1))
        inside, outside = pool[torch.isfinite(log_w)], pool[~torch.isfinite(log_w)]
        for _ in range(AGAIN):
            if len(inside) >= n:
                break
            index = systematic(members, n, generator)
            pool = self._melt(denoiser, how, source[index], s0, precision, 1.0, generator)
            inside = torch.cat([inside, pool[torch.isfinite(self.change.log_w(pool, least))]])
        return torch.cat([inside, outside])[:n], {"s0": s0, "stages": stages, "below": how, **told}

    def _how(self, denoiser: Denoiser, pool: Tensor, log_w: Tensor, cut: bool) -> str:
        """What guides below s0.

        Arguments:
            denoiser: the base with one bound observation.
            pool: its draws, with shape (n, D).
            log_w: their log weights, with shape (n,).
            cut: whether q has no mass in a part of the posterior: an anchor that was not asked for is no guide there.
        """
        predicted = denoiser.dim > len(self.quadratic.h)
        how = self.below
        if how == "transport" and why_not([self.quadratic], self.noise, predicted):  # one noise for theta and x
            how = "anchor"
        if how != "anchor" or self.settings.below != "choose":
            return how
        return "metropolis" if cut or self._uneven(pool, log_w) else how

    def _uneven(self, pool: Tensor, log_w: Tensor) -> bool:
        """Whether log r is far more curved in one part of the posterior than it is where the first step goes."""
        first = largest_step(log_w, 1.0, self.settings.ess) * log_w
        here, there = (
            curvatures(self.change, self.quadratic, pool[typical_members(w, 64)].to(pool)) for w in (first, log_w)
        )
        sharp = max(float(here.quantile(0.95)), float(there.median()))
        return sharp > UNEVEN * float(here.median())

    @staticmethod
    def _forget(spread: Tensor, error: Tensor) -> float:
        """The noise at which no parameter's mean keeps more than LEFT of a width of its error; arguments (D,)."""
        return float((spread * ((error / (LEFT * spread)).square() - 1).clamp(min=0).sqrt()).max())

    def _level(
        self, denoiser: Denoiser, how: str, some: Tensor, spread: Tensor, members: float, power: float, need: float
    ) -> float:
        """s0: what the resampling needs, and at least ``need``, within what the guidance allows."""
        most = self._limit(denoiser, how, some, power)
        if self.settings.s0 > 0:
            return min(self.settings.s0, most) if how == "transport" else self.settings.s0
        width = float(spread.mean())
        d = some.shape[1]
        # Silverman's width for that many effective members, doubled: the reverse process undoes what it blurs.
        need = max(need, min(2 * width * max(members, 2.0) ** (-1 / (d + 4)), 2 * width))
        return max(min(need, most), 5 * denoiser.s_min)

    def _limit(self, denoiser: Denoiser, how: str, some: Tensor, power: float) -> float:
        if how == "transport":
            return min(largest_noise(self.quadratic.scaled(power)), denoiser.s_max)
        if how != "anchor" or self.quadratic.exact:
            return denoiser.s_max
        return math.sqrt(0.5 / max(power * curvature(self.change, self.quadratic, some), 1e-6))

    def _guided(self, denoiser: Denoiser, how: str, precision: Tensor, power: float, generator: Generator) -> Denoiser:
        if how == "transport":
            return Transported(denoiser, self.quadratic.scaled(power))
        if how == "learned" and power == 1 and self.learned is not None:
            return self.learned.guide(denoiser, generator)
        return AnchorGuided(denoiser, self.change, self.quadratic, precision, power)

    def _melt(
        self,
        denoiser: Denoiser,
        how: str,
        pool: Tensor,
        s0: float,
        precision: Tensor,
        power: float,
        generator: Generator,
    ) -> Tensor:
        """A noisy pool, denoised with guidance."""
        guided = self._guided(denoiser, how, precision, power, generator)
        sampler = Sampler(steps=max(self.settings.steps, math.ceil(math.log(s0 / denoiser.s_min) / STEP)))
        parts = []
        for part in pool.split(ROWS):
            z = (part + s0 * randn(part, generator)).unsqueeze(1)
            parts.append(run(guided, len(part), sampler, generator, z=z, s_start=s0)[:, 0])
        return torch.cat(parts)

    def _walk(
        self, denoiser: Denoiser, how: str, pool: Tensor, least: Tensor, s0: float, power: float, generator: Generator
    ) -> tuple[Tensor, float, float]:
        """A pool moved by the base (or by transport), each move accepted or not by what is left of r^power."""
        exact = how == "transport"

        def weigh(theta: Tensor) -> Tensor:
            log_w = _weights(self.change.log_w(theta, least).cpu())
            return torch.where(log_w > -torch.inf, 0.0, log_w) if exact else power * log_w

        kernel = Transported(denoiser, self.quadratic.scaled(power)) if exact else denoiser
        return sweep(kernel, pool, weigh, s0, FINER * self.settings.steps, self.settings.sweeps, generator)

    def config(self) -> dict[str, Any]:
        own = {"settings": asdict(self.settings)}
        learned = self.learned
        return own if learned is None else {**own, "learned": {"method": learned.name, "guidance": learned.config()}}

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.learned is None else self.learned.tensors()


def _weights(log_w: Tensor) -> Tensor:
    """Log weights with -inf for what is no number."""
    return log_w.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
