"""Rejuvenation: resample, noise, denoise. No training.

A pool of base samples is resampled with weights r, which settles the large scale, where guidance is hard. Noise of level
s0 melts the duplicates, and the guided reverse process from s0 turns the noisy pool into fresh samples: below s0 a
simple guidance is accurate. Where the weights would collapse, p goes to q in steps r^b1, r^b2, ..., r, each with
the same move, so that no step loses more than a set part of the pool.

The guidance below s0 is transport where log r is quadratic and the base can express it (exact), else the plug-in value, or a
learned ratio if one is given. Where log r is not quadratic and little of the pool would be left, transport takes over
a Gaussian part of the change, and the rest is made as before, on the transported base. s0 is as large as the
resampling needs (a pool of few effective members must be melted further), and no larger than the guidance is valid:
s0^2 |Hessian of log r| about 1/2 for the plug-in value. The mean of a resampled pool, sum W theta, is off by e with
e^2 = sum W^2 (theta - mean)^2, and a process that starts from it at noise s0 keeps 1 / sqrt(1 + (s0 / w)^2) of that, w the
width; transport, exact at every noise it allows, starts high enough to leave next to nothing of it.

Where log r has no gradient, q's bounds cut the posterior, or log r is far more curved in one part of it than in another (a
spike on a slab, the core of a heavy-tailed q), the noisy pool is denoised without guidance (or by transport), and each move
is accepted or not by what is left of r (`reprior.methods.moves`): a draw that ends outside must not be dropped, or the
edge would be emptied, and one noise level does not suit a plug-in value in both parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import STEP, Denoiser
from reprior.diffusion.sampler import ROWS, Sampler, chunked, randn, run
from reprior.errors import InputError, RefusedError
from reprior.methods.method import Drawn, Method, Problem
from reprior.methods.moves import sweep
from reprior.methods.plug_in import PlugInGuided, precision_of
from reprior.methods.pools import curvature, curvatures, mean_error, spread_of, typical_members
from reprior.methods.registry import find
from reprior.methods.transport import START, Transported, largest_noise, why_not
from reprior.quadratic import local_part
from reprior.weights import check_mass, relative_ess, systematic, temper_step

__all__ = ["Rejuvenate", "RejuvenateSettings"]

KERNELS = ("choose", "transport", "plug_in", "moves", "learned")
POOL_STEPS = 32  # what is noised and denoised again gains nothing from a finer pool
SPARE = 0.2  # where some weights are zero, more draws by this part, in place of those that end outside
LOW = 0.3  # ESS/N below which it is tried whether transport can take over a part of the change
GAIN = 2.0  # and how much of it that must gain
REFITS, PROBE = 5, 2_000  # how often such a part is fitted, to so many draws
AGAIN = 5  # how often more are drawn where that was not enough
LEFT = 0.03  # of a posterior standard deviation: what may be left of the error of a resampled pool's mean
UNEVEN = 4.0  # how many times more curved log r may be elsewhere than it typically is, for a plug-in value
MISSED = 0.002  # the share of q(theta | x) that a Gaussian part of the change may leave out of reach
FINER = 2  # times as many steps, where a move is a draw of the reverse process: its SDE needs more than the ODE


@dataclass(frozen=True)
class RejuvenateSettings:
    """Settings of rejuvenation.

    Attributes:
        pool: the number of base draws.
        s0: the noise level, in standardised units (lowered where transport does not reach that far); 0 chooses it
            from the ESS and the curvature of log r.
        steps: the smallest number of sampler steps from s0 down (more from a high s0, twice as many where moves are accepted
            or not).
        kernel: what guides below s0: "choose" (transport if exact, else the plug-in value, else accept or not), "transport",
            "plug_in", "moves" (accept or not), or "learned" (a ratio that is trained first, by nre with its
            defaults; tempered steps before the last are the plug-in value's).
        sweeps: how often each member is moved, in each tempered step, where moves are accepted or not.
        ess: a step of tempering keeps at least this ESS/N; one step is enough where the whole change does.
        stages: the largest number of tempering steps.
    """

    pool: int = 10_000
    s0: float = 0.0
    steps: int = 14
    kernel: Literal["choose", "transport", "plug_in", "moves", "learned"] = "choose"
    sweeps: int = 8
    ess: float = 0.1
    stages: int = 12

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise InputError(f"kernel={self.kernel!r} is unknown; allowed: {', '.join(KERNELS)}")
        smallest = min(self.pool / 100, self.steps / 2, self.sweeps, self.stages)
        if smallest < 1 or self.s0 < 0 or not 0 < self.ess < 1:
            raise InputError(
                "rejuvenate needs pool >= 100, s0 >= 0, steps >= 2, sweeps >= 1, 0 < ess < 1, stages >= 1; "
                f"got {asdict(self)}"
            )


class Rejuvenate(Method):
    """Rejuvenation: resample and move (Gilks and Berzuini 2001), with the reverse diffusion as the move.

    Arguments:
        problem: the base and the change of prior.
        settings: the settings.
        learned: a learned ratio, for kernel="learned".
    """

    name = "rejuvenate"
    summary = "resample a pool by r, noise it, denoise it with guidance"
    Settings = RejuvenateSettings
    pools = True
    settings: RejuvenateSettings

    def __init__(self, problem: Problem, settings: RejuvenateSettings | None = None, learned: Method | None = None):
        super().__init__(problem, settings)
        self.learned, self.noise, self.quadratic = learned, problem.posterior.base.noise, self.change.quadratic
        reason = why_not([self.quadratic] if self.quadratic.exact else None, self.noise)
        kernel = self.settings.kernel
        gradient = self.quadratic.exact or self.change.differentiable
        if kernel == "choose":
            kernel = "transport" if not reason else "plug_in" if gradient else "moves"
        if kernel == "transport" and reason:
            raise RefusedError(f"rejuvenate cannot guide by transport: {reason}")
        if kernel == "learned" and learned is None:
            raise InputError("rejuvenate with kernel='learned' needs a learned ratio")
        if kernel == "plug_in" and not gradient:
            raise RefusedError(
                "the plug-in value guides by the gradient of log r, and this one has none; use kernel='moves'"
            )
        self.kernel = kernel
        # Before the last step a learned ratio leaves the guidance to the plug-in value: without one there is one step.
        self.stages = self.settings.stages if gradient or kernel == "moves" else 1

    @classmethod
    def build(cls, problem: Problem, settings: RejuvenateSettings | None = None) -> Method:
        learned = None
        if settings is not None and settings.kernel == "learned":  # on the base itself: transport has a largest noise
            nre = find("nre")
            learned = nre.build(problem, replace(nre.checked(), on="base"))
        return cls(problem, settings, learned)

    def lighter(self, draws: int = 200) -> Method:
        settings = replace(self.settings, pool=min(draws, self.settings.pool))
        return Rejuvenate(self.problem, settings, self.learned)

    def second_opinions(self, ess: float) -> list[tuple[str, Method]]:
        settings = replace(self.settings, pool=min(2_000, self.settings.pool), ess=0.3, stages=24)
        found: list[tuple[str, Method]] = [
            ("rejuvenate in smaller steps", Rejuvenate(self.problem, settings, self.learned))
        ]
        if self.kernel == "plug_in":  # the same plug-in value in smaller steps shares its errors
            moves = Rejuvenate(self.problem, replace(settings, kernel="moves"))
            found.insert(0, ("moves that are accepted by q/p", moves))
        if not why_not(self.change.quadratics, self.noise):
            found.insert(0, ("transport", find("transport").build(self.problem, find("transport").checked())))
        return found

    def draw(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> Drawn:
        pools = chunked(denoiser, self.settings.pool, replace(sampler, steps=min(sampler.steps, POOL_STEPS)), generator)
        lowest = self.change.lowest_trusted(pools)
        log_w = self.change.log_w(pools, lowest).cpu()
        theta = pools.new_full((n, *pools.shape[1:]), torch.nan)
        told, figures, failed = [], [], {}
        for k in range(pools.shape[1]):
            one = denoiser.select(k)
            try:
                theta[:, k], more = self._one(one, pools[:, k], log_w[:, k], lowest[k], n, sampler, generator)
                kernel = more.pop("kernel")
                told.append(
                    f"resampled in {more['stages']} step(s), then moved from noise {more['s0']:.2g} by {kernel}"
                )
            except RefusedError as error:
                failed[k], more = str(error), {}
                told.append("not drawn")
            figures.append(more)
        names = dict.fromkeys(name for more in figures for name in more)
        each = {name: tuple(float(more.get(name, math.nan)) for more in figures) for name in names}
        return Drawn(theta, log_w, tuple(told), failed, each)

    def _one(
        self,
        denoiser: Denoiser,
        pool: Tensor,
        log_w: Tensor,
        lowest: Tensor,
        n: int,
        sampler: Sampler,
        generator: Generator,
    ) -> tuple[Tensor, dict[str, Any]]:
        """n draws at one observation, with shape (n, D), and what there is to say."""
        check_mass(log_w)
        under = self._under(denoiser, pool, log_w, lowest, sampler, generator)
        if under is None:
            return self._move(denoiser, pool, log_w, lowest, n, generator)
        rest, moved, pool, log_rest = under
        return rest._move(moved, pool, log_rest, lowest, n, generator)

    def _under(
        self, denoiser: Denoiser, pool: Tensor, log_w: Tensor, lowest: Tensor, sampler: Sampler, generator: Generator
    ) -> tuple[Rejuvenate, Denoiser, Tensor, Tensor] | None:
        """Rejuvenation of what is left of the change when transport takes over a Gaussian part of it.

        The part is fitted to log r about where the weights of a pool are, and again at what it gave, as long as that keeps
        more. It is worth it where q is narrow: it would leave few members of the pool of p, and allow little noise to
        melt them.

        Returns: the guidance for the rest, the transported denoiser, its pool, and the log weights of that; or None.
        """
        first, first_pool = _weights(log_w), pool
        log_w, ess = first, relative_ess(first)
        best = ess
        if self.settings.kernel != "choose" or self.kernel == "transport" or self.quadratic.exact or ess > LOW:
            return None
        d, found, log_r = len(self.quadratic.h), None, first
        steps = replace(sampler, steps=min(sampler.steps, POOL_STEPS))
        for _ in range(REFITS):
            weight = torch.softmax(temper_step(log_w, 1.0, self.settings.ess) * log_w, 0)
            part = local_part(pool[:, :d].cpu(), log_r, weight, self.noise)
            if part is None or why_not([part], self.noise, denoiser.dim > d):
                break
            moved, rest = Transported(denoiser, part), self.change.minus(part)
            if moved.s_max < min(START * float(pool.std(0).max()), denoiser.s_max):
                break
            pool = chunked(moved, min(self.settings.pool, PROBE), steps, generator)[:, 0]
            log_w, log_r = (_weights(change.log_w(pool, lowest).cpu()) for change in (rest, self.change))
            now = relative_ess(log_w) if bool(torch.isfinite(log_w).any()) else 0.0
            if now <= best:
                break
            found, best = (moved, rest), now
            if now > LOW:
                break
        if found is None or best < GAIN * ess:
            return None
        moved, rest = found
        pool = chunked(moved, self.settings.pool, steps, generator)[:, 0]
        left = rest.log_w(pool, lowest).cpu()
        # A part with lighter tails than q leaves weights that grow without bound out there, where its draws do not go.
        beyond = _weights(rest.log_w(first_pool, lowest).cpu()) > _weights(left).max()
        if float(torch.softmax(first, 0)[beyond].sum()) > MISSED:
            return None
        return Rejuvenate(replace(self.problem, change=rest), self.settings), moved, pool, left

    def _move(
        self, denoiser: Denoiser, pool: Tensor, log_w: Tensor, lowest: Tensor, n: int, generator: Generator
    ) -> tuple[Tensor, dict[str, Any]]:
        """From a pool of p(theta | x), with shape (pool, D), to n draws of q(theta | x), and what there is to say."""
        power, stages, s0, told = 0.0, 0, 0.0, {}
        source = members = root = pool
        precision = precision_of(pool.unsqueeze(1), len(self.quadratic.h))  # of p(theta | x)
        first = log_w = _weights(log_w)
        cut = bool((self.change(pool) == -torch.inf).any())
        how = self._how(denoiser, pool, first, cut)
        walks = how == "moves" or (cut and how == "transport")  # moves are accepted or not: none ends outside
        some = not bool(torch.isfinite(first).all())  # cut, or a few draws beyond all that the base has learned
        spare = int(SPARE * n) + 10 if some and not walks else 0
        while power < 1:
            stages += 1
            rise = temper_step(log_w, 1 - power, self.settings.ess) if stages < self.stages else 1 - power
            power = min(1.0, power + rise)
            kept = n + spare if power == 1 else len(pool)
            members = rise * log_w
            index = systematic(members, kept, generator)
            spread = spread_of(pool, members)
            # What a step keeps still descends from few members of the first pool, unless noise melts them together.
            ess = min(relative_ess(members), relative_ess(power * first))
            error = torch.maximum(mean_error(pool, members), mean_error(root, power * first))
            d = len(self.quadratic.h)
            if walks:  # long moves, shortened where few are accepted: short ones follow the base's least certain score
                need = float(spread[:d].mean())
            else:
                need = self._forget(spread[:d], error[:d]) if how == "transport" else 0.0
            s0 = self._level(denoiser, how, pool[index[:64]], spread, ess * len(pool), power, need)
            if walks:
                pool, s0, accepted = self._walk(denoiser, how, pool[index], lowest, s0, power, generator)
                told = {"accepted": accepted, "duplicates": float(len(pool) - len(pool.unique(dim=0)))}
            else:
                source, pool = pool, self._melt(denoiser, how, pool[index], s0, precision, power, generator)
            log_w = self.change.log_w(pool, lowest).cpu()
            if power < 1:
                check_mass(log_w)
        inside, outside = pool[torch.isfinite(log_w)], pool[~torch.isfinite(log_w)]
        for _ in range(AGAIN):
            if len(inside) >= n:
                break
            index = systematic(members, n, generator)
            pool = self._melt(denoiser, how, source[index], s0, precision, 1.0, generator)
            inside = torch.cat([inside, pool[torch.isfinite(self.change.log_w(pool, lowest))]])
        return torch.cat([inside, outside])[:n], {"s0": s0, "stages": stages, "kernel": how, **told}

    def _how(self, denoiser: Denoiser, pool: Tensor, log_w: Tensor, cut: bool) -> str:
        """What guides below s0.

        Arguments:
            denoiser: the base with one bound observation.
            pool: its draws, with shape (n, D).
            log_w: their log weights, with shape (n,).
            cut: whether q has no mass in a part of the posterior: a plug-in value that was not asked for is no guide there.
        """
        predicted = denoiser.dim > len(self.quadratic.h)
        how = self.kernel
        if how == "transport" and why_not([self.quadratic], self.noise, predicted):  # one noise for theta and x
            how = "plug_in"
        if how != "plug_in" or self.settings.kernel != "choose":
            return how
        return "moves" if cut or self._uneven(pool, log_w) else how

    def _uneven(self, pool: Tensor, log_w: Tensor) -> bool:
        """Whether log r is far more curved in one part of the posterior than it is where the first step goes."""
        first = temper_step(log_w, 1.0, self.settings.ess) * log_w
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
        if how != "plug_in" or self.quadratic.exact:
            return denoiser.s_max
        return math.sqrt(0.5 / max(power * curvature(self.change, self.quadratic, some), 1e-6))

    def _guided(self, denoiser: Denoiser, how: str, precision: Tensor, power: float, generator: Generator) -> Denoiser:
        if how == "transport":
            return Transported(denoiser, self.quadratic.scaled(power))
        if how == "learned" and power == 1 and self.learned is not None:
            return self.learned.guide(denoiser, generator)
        return PlugInGuided(denoiser, self.change, self.quadratic, precision, power)

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
        self, denoiser: Denoiser, how: str, pool: Tensor, lowest: Tensor, s0: float, power: float, generator: Generator
    ) -> tuple[Tensor, float, float]:
        """A pool moved by the base (or by transport), each move accepted or not by what is left of r^power."""
        exact = how == "transport"

        def weigh(theta: Tensor) -> Tensor:
            log_w = _weights(self.change.log_w(theta, lowest).cpu())
            return torch.where(log_w > -torch.inf, 0.0, log_w) if exact else power * log_w

        kernel = Transported(denoiser, self.quadratic.scaled(power)) if exact else denoiser
        return sweep(kernel, pool, weigh, s0, FINER * self.settings.steps, self.settings.sweeps, generator)

    def config(self) -> dict[str, Any]:
        learned = self.learned and {"name": self.learned.name, "config": self.learned.config()}
        return super().config() | {"learned": learned}

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.learned is None else self.learned.tensors()

    @classmethod
    def rebuild(cls, problem: Problem, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Method:
        kept = config["learned"]
        learned = kept and find(kept["name"]).rebuild(problem, kept["config"], tensors)
        return cls(problem, RejuvenateSettings(**config["settings"]), learned or None)


def _weights(log_w: Tensor) -> Tensor:
    """Log weights with -inf for what is no number."""
    return log_w.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
