"""smc: any change of prior, by twisted sequential Monte Carlo along the diffusion. No training, no gradient of r.

The mathematics is in `sampler` (the pass), `twist`, `product`, `table`, `mixture` and `learned` (what guides it), `path` (where
it starts), `under` (a Gaussian part of the change taken over by transport), `moves` (from particles to draws), `evidence`
(log Z) and `region` (where the base is trusted).

Wu, Trippe, Naesseth, Blei, Cunningham (2023), arXiv 2306.17775.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked
from reprior.errors import InputError
from reprior.methods.method import Drawn, Method, Problem
from reprior.methods.smc.evidence import log_evidence
from reprior.methods.smc.learned import LearnedTwist
from reprior.methods.smc.mixture import MixtureTwist
from reprior.methods.smc.moves import chosen, duplicates, separated
from reprior.methods.smc.path import (
    FINE,
    GOOD,
    POOL_SAMPLER,
    STARTS,
    Path,
    Route,
    best_path,
    copies,
    descend,
    groups_of,
    path_ess,
)
from reprior.methods.smc.region import Region
from reprior.methods.smc.sampler import Particles
from reprior.methods.smc.spread import Spread
from reprior.methods.smc.twist import make_twist
from reprior.methods.smc.under import take_out

__all__ = ["SMC", "SMCSettings"]

PROBES = 300  # base draws that tell how wide a posterior is, and that a high start is made of
RATIOS = (1.25, 1.5, 2.0, 3.0, 4.5)  # particles for a draw that are tried in turn
EVEN = 0.7  # effective particles for a draw, that are wanted
FEW = 0.01  # of the draws, that may be copies by a pilot
COPIES = 0.03  # of the draws, that may be copies before they are moved apart
FEW_OBSERVATIONS = 4  # above, a pilot has half the particles


@dataclass(frozen=True)
class SMCSettings:
    """Settings of twisted SMC.

    Attributes:
        particles: particles for a draw; 0 takes what a pilot finds, 1.25 to 4.5.
        fewest: the smallest number of particles.
        steps: noise levels from 10 down to .002, in standardised units.
        pilot: particles of a pilot.
        average: draws of a Monte Carlo twist.
    """

    particles: float = 0.0
    fewest: int = 1_024
    steps: int = 32
    pilot: int = 256
    average: int = 64

    def __post_init__(self) -> None:
        ratio = self.particles == 0 or self.particles >= 1
        if not ratio or min(self.fewest, self.pilot) < 64 or self.steps < 8 or self.average < 2:
            raise InputError(
                f"smc needs particles 0 or >= 1, fewest and pilot >= 64, steps >= 8, average >= 2; got {asdict(self)}"
            )


@dataclass(frozen=True)
class Record:
    """What came out at one observation: draws with shape (n, D), or the reason why there are none."""

    theta: Tensor | None
    log_z: float
    log_z_error: float
    path_ess: float
    duplicates: float
    told: str
    failed: str = ""


class SMC(Method):
    """Twisted sequential Monte Carlo.

    Arguments:
        problem: the base and the change of prior.
        settings: the settings.
        learned: a learned method, whose ratio guides in place of a twist of its own.
    """

    name = "smc"
    summary = "any prior: particles along the diffusion, guided by r smoothed by the noise that is left, and weighted"
    Settings = SMCSettings
    has_density = False

    def __init__(self, problem: Problem, settings: SMCSettings | None = None, learned: Method | None = None):
        super().__init__(problem, settings or SMCSettings())
        self.region, self.learned = Region.of(problem.change), learned
        self._routes: dict[bool, list[Route]] = {}

    def lighter(self, draws: int = 200) -> SMC:
        light = replace(self.settings, fewest=max(64, draws), steps=20, pilot=64, average=32)
        return SMC(self.problem, light, self.learned)

    def draw(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> Drawn:
        probes = chunked(denoiser, PROBES, POOL_SAMPLER, generator)
        lowest, spread = self.region.lowest(probes), Spread.of(probes)
        records: dict[int, Record] = {}
        for known in lowest.unique().tolist():  # the lowest log p of the region, or none
            index = (lowest == known).nonzero()[:, 0].tolist()
            part = denoiser.select(index)
            found = self._drawn(part, probes[:, index], spread.select(torch.tensor(index)), known, n, generator)
            records |= dict(zip(index, found, strict=True))
        return _gathered([records[k] for k in range(denoiser.observations)], n, denoiser)

    def _drawn(
        self, denoiser: Denoiser, probes: Tensor, spread: Spread, lowest: float, n: int, generator: Generator
    ) -> list[Record]:
        """The records of observations that share a trusted region."""
        count, whole = denoiser.observations, list(range(denoiser.observations))
        records: dict[int, Record] = {}
        if self.learned is not None:
            for k in whole:
                one = (denoiser.select([k]), probes[:, [k]], spread.select(torch.tensor([k])))
                path = self._learned_path(*one, lowest, generator)
                records[k] = self._ended(best_path(None, [path], self.settings.pilot, generator), n, generator)
            return [records[k] for k in whole]
        routes = self._routes_at(probes, lowest)
        best: list[tuple[float, int, float]] = [(-1.0, 0, 1.0)] * count  # score, start, particles for a draw
        pilot = self.settings.pilot if count <= FEW_OBSERVATIONS else max(64, self.settings.pilot // 2)

        def at(index: list[int], start: int) -> Path:
            some = spread.select(torch.tensor(index))
            width = float(some.width.max() if start == 0 else some.width.median())
            s0 = min(STARTS[start] * width, denoiser.s_max)
            return Path(denoiser.select(index), routes[0], probes[:, index], some, s0, self.settings.steps)

        for start in range(len(STARTS)):
            index = [k for k in whole if best[k][0] < GOOD]
            if not index:
                break
            tried = descend(at(index, start), pilot, generator, 1)
            for i, k in enumerate(index):
                score = float(path_ess(tried)[i])
                if score > best[k][0]:
                    best[k] = (score, start, self._ratio(tried.column(i)))
        for k in whole:
            if best[k][0] < FINE:
                records[k] = self._hard(at([k], best[k][1]), routes, generator, n)
        for start in range(len(STARTS)):
            index = [k for k in whole if k not in records and best[k][1] == start]
            if not index:
                continue
            # What is enough for most of them: the copies that are left at the others are moved apart.
            ratio = sorted(best[k][2] for k in index)[int(0.8 * (len(index) - 1))]
            path = at(index, start)
            done = self._run(path, n, ratio, generator)
            for i, k in enumerate(index):
                records[k] = self._record(path.select(i), done.column(i), n, generator)
        return [records[k] for k in whole]

    def _hard(self, path: Path, routes: list[Route], generator: Generator, n: int) -> Record:
        """An observation where no start does: other twists, and a Gaussian part taken out."""
        pilot = self.settings.pilot
        best = best_path(None, [path], pilot, generator)
        top = min(STARTS[0] * float(path.spread.width), path.denoiser.s_max)
        best = best_path(best, [replace(path, route=route, s0=top) for route in routes[1:]], pilot, generator)
        if best[0] < FINE:
            best = self._under(best, path.denoiser, path.spread, path.route.lowest, generator)
        return self._ended(best, n, generator)

    def _ended(self, best: tuple[float, Path, Particles], n: int, generator: Generator) -> Record:
        _, path, tried = best
        return self._record(path, self._run(path, n, self._ratio(tried), generator), n, generator)

    def _under(self, best: Any, denoiser: Denoiser, spread: Spread, lowest: float, generator: Generator) -> Any:
        """The best path so far, or one on a transported base if that does better."""
        route = best[1].route
        under = take_out(denoiser, self.region, lowest, route.twist, generator)
        if under is None:
            return best
        rest = replace(route, region=under.region, twist=under.twist, part=under.part)
        inner = Spread.of(under.draws)
        starts = [min(start * float(inner.width), under.denoiser.s_max) for start in STARTS]
        more = [
            Path(under.denoiser, rest, under.draws, inner, s0, self.settings.steps, (denoiser, spread)) for s0 in starts
        ]
        return best_path(best, more, self.settings.pilot, generator)

    def _learned_path(
        self, denoiser: Denoiser, probes: Tensor, spread: Spread, lowest: float, generator: Generator
    ) -> Path:
        """The path of a learned ratio: from as high as it was trained, on the base that it guides."""
        assert self.learned is not None
        guided: Any = self.learned.guide(denoiser, generator)
        part, region = getattr(self.learned, "transported", None), self.region
        inner, base = guided.inner, None
        if part is not None:
            probes = chunked(inner, PROBES, POOL_SAMPLER, generator)
            region, base, spread = region.minus(part), (denoiser, spread), Spread.of(probes)
        route = Route(region, lowest, LearnedTwist(guided.log_ratio), f"by the ratio of {self.learned.name}", part)
        s0 = min(STARTS[0] * float(spread.width), guided.s_max)
        return Path(inner, route, probes, spread, s0, self.settings.steps, base)

    def _routes_at(self, probes: Tensor, lowest: float) -> list[Route]:
        """What may guide at some observations, whose base draws have shape (n, K, D), the cheapest first."""
        points = probes[..., : len(self.change.scale.shift)].flatten(0, 1)
        key = lowest > -math.inf
        if key not in self._routes or not self._routes[key][0].twist.covers(points):
            twists = make_twist(self.region, lowest, self.settings.average, self.problem.seed, points)
            self._routes[key] = [Route(self.region, lowest, twist, told) for twist, told in twists]
        return self._routes[key]

    def _ratio(self, tried: Particles) -> float:
        """How many particles for a draw, from a pilot of one observation: few copies, and as many effective ones as draws."""
        if self.settings.particles:
            return self.settings.particles
        share = float(path_ess(tried))
        enough = (r for r in RATIOS if r * share > EVEN and float(copies(tried.log_w, r).max()) < FEW)
        return next(enough, RATIOS[-1])

    def _run(self, path: Path, n: int, ratio: float, generator: Generator) -> Particles:
        count = max(math.ceil(ratio * n), self.settings.fewest)
        groups = groups_of(count)
        return descend(path, groups * math.ceil(count / groups), generator, groups)

    def _record(self, path: Path, done: Particles, n: int, generator: Generator) -> Record:
        """The draws of one observation from its particles."""
        if not bool((done.log_w > -math.inf).any()):
            why = "no particle ended where the target prior has mass: the observation and the target prior do not agree"
            return Record(None, -math.inf, math.inf, 0.0, 0.0, "", why)
        route, count = path.route, len(done.log_w)
        theta = done.theta[chosen(done.log_w, n, generator)[:, 0], 0]
        again = float(duplicates(theta).float().mean())
        told = f"{count:,} particles went from noise {path.s0:.3g} down, guided {route.told}"
        if route.part is not None:
            told += " of what a Gaussian part, taken over by transport, leaves of q/p"
        if again > COPIES:
            s, steps = min(float(path.spread.width), path.denoiser.s_max), max(12, self.settings.steps // 2)
            theta = separated(path.denoiser, theta, route.log_r, s, steps, generator)
            told += f"; {100 * again:.2g} % of the draws were copies, which accepted moves took apart"
            again = float(duplicates(theta).float().mean())
        told += f"; {self.region.told()}" if self.region.told() else ""
        log_z, error = (float(v) for v in log_evidence(done, path.spread, self.settings.steps))
        if route.part is not None:
            first, more = self._part_evidence(path, generator)
            log_z, error = log_z + first, math.hypot(error, more)
        return Record(theta, log_z, error, float(path_ess(done)), again, told)

    def _part_evidence(self, path: Path, generator: Generator) -> tuple[float, float]:
        """log E_p(theta|x)[exp(part)] and its error, by a pass on the base with the twist in closed form."""
        part = path.route.part
        assert path.base is not None
        assert part is not None
        base, spread = path.base
        route = Route(_Only(part), -math.inf, MixtureTwist([part]), "")
        pool = chunked(base, PROBES, POOL_SAMPLER, generator)
        s0 = min(STARTS[0] * float(spread.width), base.s_max)
        done = self._run(Path(base, route, pool, spread, s0, self.settings.steps), 0, 1.0, generator)
        log_z, error = log_evidence(done, spread, self.settings.steps)
        return float(log_z), float(error)


@dataclass(frozen=True)
class _Only:
    """A Gaussian log r that counts everywhere."""

    part: Any

    def log_r(self, theta: Tensor, lowest: float) -> Tensor:
        return self.part(theta.double())


def _gathered(records: list[Record], n: int, denoiser: Denoiser) -> Drawn:
    """One answer from the records of all observations; NaN where one failed."""
    lost = torch.full((n, denoiser.dim), math.nan, dtype=denoiser.x.dtype)
    theta = torch.stack([lost if record.theta is None else record.theta for record in records], 1)
    names = ("log_z", "log_z_error", "path_ess", "duplicates")
    figures = {name: tuple(float(getattr(record, name)) for record in records) for name in names}
    failed = {k: record.failed for k, record in enumerate(records) if record.failed}
    return Drawn(theta, told=tuple(record.told for record in records), failed=failed, figures=figures)
