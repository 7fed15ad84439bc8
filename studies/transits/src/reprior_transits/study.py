"""The light-curve study of one target: windows, base model, sequential update, tables, figures and report.

Window after window, the posterior of the last is the prior of the next (`reprior.update`). The midpoint t0 and the noise
sigma belong to a window and are not carried: each window is centred on its own dip, and the noise of real windows differs
(by half between those of WASP-39). k, a, inc, P, u1 and u2 belong to the star and its planet and are.

Runs, each with its samples after every window:

- accumulate: the carried prior is the sum of the base's own log-densities. This is the result. Its samples, moved under a
  function of what a window sees, get a P drawn given a / P and a cos(inc) at the end (`known_period.redraw_period`): the
  moves alone are slow along that line.
- known period: the same samples once the period is set to that of the mid-times (`known_period`): what a conventional
  fit with its period held is to be compared with.
- shuffled: accumulate with the windows in another order; its final posterior must be the same.
- competitors, in the order of time: the paper's own update ("ratio"), or PriorGuide Monte Carlo ("priorguide_mc").
- exact: from the likelihood, by sequential Monte Carlo and without any network (`exact`): what the others approximate.

A killed study goes on where it stopped: the base from its checkpoint, each run after its last finished window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior import Posterior, Updates, adapt, update
from reprior.adapted import AdaptedPosterior
from reprior.diagnostics import DiagnoseSettings, diagnose
from reprior.diffusion.sampler import PAPER_SAMPLER
from reprior.errors import InputError
from reprior.io import write_rows
from reprior.methods import find
from reprior.sequential import AccumulateSettings, RatioUpdateSettings
from reprior_transits.base import BaseSettings, encode, get_base, simulate_windows
from reprior_transits.clock import Clock
from reprior_transits.coordinates import TRANSIT
from reprior_transits.exact_run import stored_exact
from reprior_transits.figures import errors_figure, steps_figure, windows_figure
from reprior_transits.known_period import redraw_period, with_period
from reprior_transits.tables import agreements, error_rows, final_rows, step_rows
from reprior_transits.targets import Target
from reprior_transits.windows import Photometry

__all__ = ["NUISANCE", "Study", "StudySettings", "competitor_settings", "run_study"]

NUISANCE = ("t0", "sigma")


def competitor_settings(names: Iterable[str]) -> dict[str, RatioUpdateSettings]:
    """Settings of the competitors: "ratio", the paper's own update, or "priorguide_mc" in its place.

    PriorGuide Monte Carlo is a method of the benchmark package. It runs with its paper's sampler and 2 Langevin corrections a step instead of 8: with 8,
    and 2,000 samples, it takes six minutes a window on one core.
    """
    made = {}
    for name in names:
        if name == "ratio":
            made[name] = RatioUpdateSettings()
        elif name == "priorguide_mc":
            try:
                import_module("reprior_bench.methods")  # which registers it
            except ImportError as error:
                raise InputError(
                    "the competitor 'priorguide_mc' needs reprior-bench: pip install ./benchmarks"
                ) from error
            settings = find(name).Settings
            assert settings is not None
            few = settings(draws=100, corrections=2)
            made[name] = RatioUpdateSettings(method=name, settings=few, sampler=PAPER_SAMPLER)
        else:
            raise InputError(f"competitor {name!r} is unknown; allowed: ratio, priorguide_mc")
    return made


@dataclass(frozen=True)
class StudySettings:
    """Settings of a study.

    Attributes:
        base: the base model; its half-width must be that of the target's windows.
        accumulate: settings of the updates.
        competitors: settings of `reprior.update(method="ratio")` to run beside accumulate, by name.
        samples: posterior samples after each window.
        competitor_samples: the same for the competitors: PriorGuide takes a hundred evaluations a step for each.
        exact: samples of the exact posterior; 0 leaves it out.
        stored: simulations made for the report's checks.
        seed: of the updates; the shuffled order follows from it.
        diagnosis: how much the report draws.
    """

    base: BaseSettings = field(default_factory=BaseSettings)
    accumulate: AccumulateSettings = field(
        default_factory=lambda: AccumulateSettings(points=1_600, rounds=2, coordinates=TRANSIT)
    )
    competitors: Mapping[str, RatioUpdateSettings] = field(default_factory=dict)
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
        checks: figures of the run: agreement of the two orders and with the exact posterior (`tables.agreement`), relative ESS of
            the known period, seconds of each part.
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
    folder: str | Path,
    settings: StudySettings | None = None,
    bases: str | Path | None = None,
    progress: bool = True,
) -> Study:
    """Runs a study, or what is not done of it yet.

    Arguments:
        target: what is known of the target.
        photometry: its windows, of `Target.process`.
        folder: results are written there, and a run that was stopped goes on from there.
        settings: the settings; defaults with the target's half-width if not given.
        bases: the folder of base models; "bases" in the study's folder if not given.
        progress: show progress bars.
    """
    settings = settings or StudySettings(BaseSettings(target.windows.half_width, look=target.look))
    folder, photometry = Path(folder), _fitting(target, photometry, settings.base)
    windows = photometry.windows
    clock = Clock()
    base = get_base(settings.base, bases or folder / "bases", progress)
    clock.note("base")
    runs, updates, order = _runs(base, encode(windows.x), settings, folder / "updates", progress, clock)
    if settings.exact:
        half_width = settings.base.half_width
        runs["exact"] = stored_exact(windows.x, half_width, folder / "updates", settings.exact, settings.seed, progress)
        clock.note("exact")
    known = [with_period(theta, photometry.ephemeris.period, settings.seed) for theta in runs["accumulate"]]
    runs["known period"] = [theta for theta, _ in known]
    checks = {
        "windows": len(windows),
        "rejected": len(windows.rejected),
        "period": photometry.ephemeris.period,
        "known_period_ess": known[-1][1],
        **agreements(runs),
        "verdict": f"{updates[-1].verdict}: {' '.join(updates[-1].reasons)}",
    }
    written = _write(target, photometry, settings, runs, folder)
    clock.note("tables and figures")
    written["report"] = _report(base, updates, settings, folder)
    clock.note("report")
    checks |= clock.seconds(folder / "checks.csv")
    rows = [{"check": name, "value": f"{v:.4g}" if isinstance(v, float) else v} for name, v in checks.items()]
    written["checks"] = write_rows(rows, folder / "checks.csv")
    return Study(target, photometry, runs, updates, order, checks, written)


def _fitting(target: Target, photometry: Photometry, base: BaseSettings) -> Photometry:
    """The photometry with the windows that the base was made for; the others are rejected and named."""
    windows = photometry.windows
    if windows.flux.shape[1] != base.points:
        raise InputError(f"windows have {windows.flux.shape[1]} points and the base {base.points}")
    if abs(target.windows.half_width - base.half_width) > 1e-9:
        raise InputError(
            f"windows extend {target.windows.half_width} d from mid-transit and those of the base {base.half_width} d"
        )
    if base.look is None:
        return photometry
    seen = base.look.seen(windows.x, base.half_width).numpy()
    return replace(photometry, windows=windows.keep(seen, f"does not look like the windows of the base, {base.look}"))


def _runs(
    base: Posterior, x: Tensor, settings: StudySettings, folder: Path, progress: bool, clock: Clock
) -> tuple[dict[str, list[Tensor]], Updates, np.ndarray]:
    """All runs of `update`, each with its finished windows in a folder of its own; and the shuffled order."""
    order = np.random.default_rng(settings.seed).permutation(len(x))
    if len(x) > 1 and (order == np.arange(len(x))).all():
        order = order[::-1].copy()

    def one(name: str, rows: Tensor, method: str, how: Any, samples: int) -> Updates:
        found = update(
            base,
            rows,
            nuisance=NUISANCE,
            method=method,
            settings=how,
            samples=samples,
            seed=settings.seed,
            progress=progress,
            folder=folder / name,
        )
        clock.note(name)
        return found

    updates = one("accumulate", x, "accumulate", settings.accumulate, settings.samples)
    shuffled = one("shuffled", x[torch.as_tensor(order)], "accumulate", settings.accumulate, settings.samples)
    found = {"accumulate": updates, "shuffled": shuffled}
    for name, how in settings.competitors.items():
        found[name] = one(name, x, "ratio", how, settings.competitor_samples)
    runs = {name: [step.samples for step in steps] for name, steps in found.items()}
    generator = torch.Generator().manual_seed(settings.seed)
    for name in ("accumulate", "shuffled"):
        runs[name] = [redraw_period(theta, generator) for theta in runs[name]]
    return runs, updates, order


def _write(
    target: Target,
    photometry: Photometry,
    settings: StudySettings,
    runs: Mapping[str, list[Tensor]],
    folder: Path,
) -> dict[str, Path]:
    """The tables and the figures."""
    windows, published, fit = photometry.windows, target.reference, target.fit
    steps = runs["accumulate"]
    finals = {
        "windows alone": steps[-1],
        "known period": runs["known period"][-1],
        "windows alone, shuffled": runs["shuffled"][-1],
        **{name: runs[name][-1] for name in settings.competitors},
    }
    if "exact" in runs:
        finals["exact"] = runs["exact"][-1]
        finals["exact, known period"] = with_period(runs["exact"][-1], photometry.ephemeris.period, settings.seed)[0]
    errors = error_rows(runs, published, fit)
    n, planet = len(windows), target.planet
    return {
        "steps": write_rows(step_rows(runs, windows.mid_times), folder / "steps.csv"),
        "errors": write_rows(errors, folder / "errors.csv"),
        "final": write_rows(final_rows(finals, published, fit), folder / "final.csv"),
        "posterior figure": steps_figure(
            steps,
            folder / "posterior.png",
            published,
            fit,
            runs["known period"],
            f"{planet}: the posterior after each of {n} transits",
        ),
        "error figure": errors_figure(errors, folder / "errors.png", f"{planet}: error after each of {n} transits"),
        "windows figure": windows_figure(
            windows,
            steps,
            settings.base.simulator,
            folder / "windows.png",
            f"{planet}: each window, and the posterior predictive once it is in",
        ),
    }


def _report(base: Posterior, updates: Updates, settings: StudySettings, folder: Path) -> Path:
    """The HTML report on the last update, with fresh simulations for the checks that need some."""
    stored = simulate_windows(settings.base, settings.stored, settings.base.seed + 1_000)
    posterior = base.with_simulations(stored.theta, stored.x)
    adapted = updates[-1].adapted
    if not isinstance(adapted, AdaptedPosterior):
        adapted = adapt(posterior, posterior.prior)  # one window: nothing was carried
    found = diagnose(replace(adapted, posterior=posterior), updates[-1].x, settings.seed, settings.diagnosis)
    return found.to_html(folder / "report.html")
