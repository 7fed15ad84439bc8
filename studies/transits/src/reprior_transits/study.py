"""The light-curve study of one target: windows, base model, sequential update, tables, figures and report.

Window after window, the posterior of the last is the prior of the next (`reprior.update`). The midpoint t0 and the noise
sigma belong to a window and are not carried: each window is centred on its own dip, and the noise of real windows differs
(by half between those of WASP-39). k, a, inc, P, u1 and u2 belong to the star and its planet and are.

Runs, each with its samples after every window:

- accumulate: the carried prior is the sum of the base's own log-densities. This is the result. Its samples, moved under a
  function of what a window sees, get a P drawn given a / P and a cos(inc) at the end (`known_period.redraw_period`): the
  moves alone are slow along that line.
- known period: the same samples once the period is fixed to that of the mid-times (`known_period`): what a conventional
  fit with its period fixed is to be compared with.
- shuffled: accumulate with the windows in another order; its final posterior must be the same.
- priorguide_mc: the competitor, in the order of time.
- exact: from the likelihood, by sequential Monte Carlo and without any network (`exact`): what the others approximate.

A killed study goes on where it stopped: the base from its checkpoint, each run after its last finished window.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior_bench import metrics
from reprior.adapted import AdaptedPosterior, adapt
from reprior.diagnostics import DiagnoseSettings, diagnose
from reprior.errors import InputError
from reprior_bench.methods.priorguide import MonteCarloSettings
from reprior_transits.base import BaseSettings, encode, get_base, simulate_windows
from reprior_transits.exact_run import stored_exact
from reprior_transits.figures import errors_figure, steps_figure, windows_figure
from reprior_transits.known_period import redraw_period, with_period
from reprior_transits.tables import INTEREST, error_rows, final_rows, step_rows, summary
from reprior_transits.targets import Target
from reprior_transits.transit_prior import PARAMETERS, fold_inclination
from reprior_transits.windows import Photometry
from reprior.posterior import Posterior
from reprior.sequential.result import Updates
from reprior.sequential.settings import AccumulateSettings, MonteCarloUpdateSettings
from reprior.sequential.update import update
from reprior.io import read_rows, write_rows

__all__ = ["NUISANCE", "Study", "StudySettings", "competitor_settings", "run_study"]

NUISANCE = ("t0", "sigma")
COLUMNS = [PARAMETERS.index(name) for name in INTEREST]


def competitor_settings(methods: Iterable[str]) -> dict[str, Any]:
    """Settings of the competitors, by method: "best", and for PriorGuide 2 Langevin corrections a step instead of 8.

    With 8, and 2,000 samples, PriorGuide takes six minutes a window on one core.
    """
    few = MonteCarloUpdateSettings(guidance=MonteCarloSettings(draws=100, corrections=2))
    return {method: few if method == "priorguide_mc" else "best" for method in methods}


@dataclass(frozen=True)
class StudySettings:
    """Settings of a study.

    Attributes:
        base: the base model; its half-width must be that of the target's windows.
        accumulate: settings of the updates.
        competitors: methods of `reprior.update` to run beside accumulate, with their settings.
        samples: posterior samples after each window.
        competitor_samples: the same for the competitors: PriorGuide takes a hundred evaluations a step for each.
        exact: samples of the exact posterior; 0 leaves it out.
        stored: simulations made for the report's checks.
        seed: of the updates; the shuffled order follows from it.
        diagnosis: how much the report draws.
    """

    base: BaseSettings = field(default_factory=BaseSettings)
    accumulate: AccumulateSettings = field(
        default_factory=lambda: AccumulateSettings(points=1_600, rounds=2, coordinates="transit")
    )
    competitors: Mapping[str, Any] = field(default_factory=lambda: competitor_settings(["priorguide_mc"]))
    samples: int = 5_000
    competitor_samples: int = 500
    exact: int = 1_000
    stored: int = 20_000
    seed: int = 0
    diagnosis: DiagnoseSettings = field(default_factory=lambda: DiagnoseSettings(pairs=0))


@dataclass(frozen=True)
class Study:
    """What a study found.

    Attributes:
        target: whose windows they are.
        photometry: the light curve, the ephemeris and the windows.
        runs: for each run, the samples after each window, each with shape (n, 8).
        updates: of the run accumulate.
        order: the shuffled order of the windows, with shape (N,).
        checks: figures of the run: agreement of the two orders and with the exact posterior (`agreement`), ESS of the
            known period, seconds of each part.
        files: what was written, by name.
    """

    target: Target
    photometry: Photometry
    runs: dict[str, list[Tensor]]
    updates: Updates
    order: np.ndarray
    checks: dict[str, Any]
    files: dict[str, Path]


def run_study(
    target: Target,
    photometry: Photometry,
    out: str | Path,
    settings: StudySettings | None = None,
    bases: str | Path | None = None,
    progress: bool = True,
) -> Study:
    """Runs a study, or what is left of it.

    Arguments:
        target: what is known of the target.
        photometry: its windows, of `Target.process`.
        out: the folder of the study.
        settings: the settings; defaults with the target's half-width if not given.
        bases: the folder of base models; "bases" in the study's folder if not given.
        progress: show progress bars.
    """
    settings = settings or StudySettings(BaseSettings(target.windows.half_width, look=target.look))
    out, windows = Path(out), photometry.windows
    if windows.flux.shape[1] != settings.base.points:
        raise InputError(f"windows have {windows.flux.shape[1]} points and the base {settings.base.points}")
    if abs(target.windows.half_width - settings.base.half_width) > 1e-9:
        raise InputError(
            f"windows reach {target.windows.half_width} d from mid-transit and the base {settings.base.half_width} d"
        )
    if look := settings.base.look:
        seen = look.seen(windows.x, settings.base.half_width).numpy()
        windows = windows.keep(seen, f"does not look like the windows of the base, {look}")
        photometry = replace(photometry, windows=windows)
    out.mkdir(parents=True, exist_ok=True)
    clock = _Clock()
    base = get_base(settings.base, bases or out / "bases", progress)
    clock.note("base")
    x = encode(windows.x)
    runs, updates, order = _runs(base, x, settings, out / "updates", progress, clock)
    generator = torch.Generator().manual_seed(settings.seed)
    for name in ("accumulate", "shuffled"):
        runs[name] = [redraw_period(theta, generator) for theta in runs[name]]
    if settings.exact:
        kept = out / "updates" / "exact.safetensors"
        runs["exact"] = stored_exact(windows.x, settings.base.half_width, kept, settings.exact, settings.seed)
        clock.note("exact")
    last, period = runs["accumulate"][-1], photometry.ephemeris.period
    known = [with_period(theta, period, settings.seed) for theta in runs["accumulate"]]
    runs["known period"] = [theta for theta, _ in known]
    checks = {
        "windows": len(windows),
        "rejected": len(windows.rejected),
        "period": period,
        "known_period_ess": known[-1][1],
        **{f"shuffled_{name}": value for name, value in agreement(last, runs["shuffled"][-1]).items()},
        "verdict": updates[-1].verdict,
    }
    if settings.exact:
        checks |= {f"exact_{name}": value for name, value in agreement(runs["exact"][-1], last).items()}
    written = _write(target, photometry, settings, runs, out)
    clock.note("tables and figures")
    written["report"] = _report(base, updates, settings, out)
    clock.note("report")
    checks |= clock.seconds(out / "checks.csv")
    rows = [{"check": name, "value": f"{v:.4g}" if isinstance(v, float) else v} for name, v in checks.items()]
    written["checks"] = write_rows(rows, out / "checks.csv")
    return Study(target, photometry, runs, updates, order, checks, written)


def agreement(one: Tensor, other: Tensor) -> dict[str, float]:
    """How well two sets of samples, with shape (n, 8), agree in the parameters of interest.

    Returns: for each, the difference of the medians in standard deviations of the first, and `c2st_fast` of all four, on as
    many samples of one as of the other.
    """
    first, second = summary(one), summary(other)
    shifts = {f"shift_{name}": (second[name][0] - first[name][0]) / first[name][1] for name in INTEREST}
    n = min(len(one), len(other))
    a, b = (fold_inclination(theta)[:n, COLUMNS] for theta in (one, other))
    return {**shifts, "c2st": metrics.c2st_fast(a, b)}


def _runs(
    base: Posterior, x: Tensor, settings: StudySettings, folder: Path, progress: bool, clock: _Clock
) -> tuple[dict[str, list[Tensor]], Updates, np.ndarray]:
    # All runs of `update`; each keeps its finished windows in a folder of its own.
    order = np.random.default_rng(settings.seed).permutation(len(x))
    if len(x) > 1 and (order == np.arange(len(x))).all():
        order = order[::-1].copy()

    def one(name: str, method: str, rows: Tensor, how: Any, samples: int = settings.samples) -> Updates:
        found = update(
            base,
            rows,
            nuisance=NUISANCE,
            method=method,
            settings=how,
            samples=samples,
            folder=folder / name,
            seed=settings.seed,
            progress=progress,
        )
        clock.note(name)
        return found

    updates = one("accumulate", "accumulate", x, settings.accumulate)
    shuffled = one("shuffled", "accumulate", x[torch.as_tensor(order)], settings.accumulate)
    runs = {"accumulate": updates, "shuffled": shuffled}
    for method, how in settings.competitors.items():
        runs[method] = one(method, method, x, how, settings.competitor_samples)
    return {name: [step.samples for step in steps] for name, steps in runs.items()}, updates, order


def _write(
    target: Target,
    photometry: Photometry,
    settings: StudySettings,
    runs: Mapping[str, list[Tensor]],
    out: Path,
) -> dict[str, Path]:
    windows, published, fit = photometry.windows, target.reference, target.fit
    steps = runs["accumulate"]
    finals = {
        "windows alone": steps[-1],
        "known period": runs["known period"][-1],
        "windows alone, shuffled": runs["shuffled"][-1],
        **{method: runs[method][-1] for method in settings.competitors},
    }
    if "exact" in runs:
        finals["exact"] = runs["exact"][-1]
        finals["exact, known period"] = with_period(runs["exact"][-1], photometry.ephemeris.period, settings.seed)[0]
    errors = error_rows(runs, published, fit)
    n, planet = len(windows), target.planet
    return {
        "steps": write_rows(step_rows(runs, windows.mid_times), out / "steps.csv"),
        "errors": write_rows(errors, out / "errors.csv"),
        "final": write_rows(final_rows(finals, published, fit), out / "final.csv"),
        "posterior figure": steps_figure(
            steps,
            out / "posterior.png",
            published,
            fit,
            runs["known period"],
            f"{planet}: the posterior after each of {n} transits",
        ),
        "error figure": errors_figure(errors, out / "errors.png", f"{planet}: error after each of {n} transits"),
        "windows figure": windows_figure(
            windows,
            steps,
            settings.base.simulator,
            out / "windows.png",
            f"{planet}: each window, and the posterior predictive once it is in",
        ),
    }


def _report(base: Posterior, updates: Updates, settings: StudySettings, out: Path) -> Path:
    """The HTML report on the last update, with fresh simulations for the checks that need some."""
    stored = simulate_windows(settings.base, settings.stored, settings.base.seed + 1_000)
    posterior = base.with_simulations(stored.theta, stored.x)
    adapted = updates[-1].adapted
    if not isinstance(adapted, AdaptedPosterior):
        adapted = adapt(posterior, posterior.prior)  # one window: nothing was carried
    found = diagnose(replace(adapted, posterior=posterior), updates[-1].x, settings.seed, settings.diagnosis)
    return found.to_html(out / "report.html")


class _Clock:
    """Seconds of each part of a run."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.last = time.monotonic()

    def note(self, name: str) -> None:
        now = time.monotonic()
        self.parts[name] = now - self.last
        self.last = now

    def seconds(self, before: Path) -> dict[str, float]:
        """Of each part, by its name in the table of checks: those of an earlier run where this one only read its files."""
        rows = {row["check"]: row["value"] for row in read_rows(before)}
        old = {name: float(value) for name, value in rows.items() if name.startswith("seconds_")}
        now = {f"seconds_{name.replace(' ', '_')}": round(value, 1) for name, value in self.parts.items()}
        return {name: max(value, old.get(name, 0.0)) for name, value in now.items()}
