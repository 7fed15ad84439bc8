"""Can this adapted posterior be trusted? `diagnose` makes the checks and gives a `Report`.

The verdict is the worst of the checks: "do not trust" if one stops, "caution" if one calls for it, "ok" otherwise.
Checks that could not be made are listed with the reason. Every check uses what is stored: no simulator is called.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from reprior import priors
from reprior._version import __version__
from reprior.adapted import AdaptedPosterior
from reprior.diagnostics.calibration import Calibration
from reprior.diagnostics.case import Case
from reprior.diagnostics.check import CHECKS, Outcome, Thresholds, check_thresholds, judge, short
from reprior.diagnostics.draws import Scene, make_scene, typical_x
from reprior.errors import InputError
from reprior.sampling import check_x
from reprior.seeds import check_seed

__all__ = ["VERDICTS", "DiagnoseSettings", "Report", "conclude", "diagnose"]

VERDICTS = ("ok", "caution", "do not trust")
SHOWN = 2_000  # draws of each prior that a report keeps for its figures, at most


@dataclass(frozen=True)
class DiagnoseSettings:
    """How much a diagnosis draws, and the thresholds of its checks.

    Attributes:
        draws: adapted samples at each observation.
        pool: base samples at each observation.
        observations: the number of stored observations that are examined if no x is given.
        pairs: stored pairs for calibration (a third of them where a method draws a pool at each); 0 leaves it out.
        ranks: adapted samples at each pair.
        density_dim: the largest number of parameters for which log-densities of the base are computed.
        thresholds: (caution, stop) for checks by name, in place of their own.
    """

    draws: int = 3_000
    pool: int = 4_000
    observations: int = 3
    pairs: int = 240
    ranks: int = 40
    density_dim: int = 12
    thresholds: Thresholds = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.draws < 200 or self.pool < 500 or self.observations < 1:
            raise InputError(
                "a diagnosis needs draws >= 200, pool >= 500 and observations >= 1; got "
                f"{self.draws}, {self.pool}, {self.observations}"
            )
        if self.pairs != 0 and (self.pairs < 150 or self.ranks < 20):
            raise InputError(
                f"calibration needs pairs >= 150 (or 0: none) and ranks >= 20; got {self.pairs}, {self.ranks}"
            )
        check_thresholds(self.thresholds)


@dataclass(frozen=True)
class Report:
    """The verdict on an adapted posterior, with its reasons and figures.

    Attributes:
        verdict: "ok", "caution" or "do not trust".
        reasons: why, in plain words; each names a figure and its threshold.
        checks: every check with its outcome; ``report["ess"]`` is one of them.
        method: the name of the method that was judged.
        why: why this method.
        about: versions, seeds, sizes.
        parameters: the names of the parameters.
        scenes: the samples at each observation.
        calibration: the calibration figures.
        prior: draws of p, with shape (n, d).
        target: draws of q, with shape (n, d).
    """

    verdict: str
    reasons: tuple[str, ...]
    checks: tuple[Outcome, ...]
    method: str
    why: str
    about: dict[str, Any]
    parameters: tuple[str, ...]
    scenes: tuple[Scene, ...] = field(repr=False)
    calibration: Calibration = field(repr=False)
    prior: Tensor = field(repr=False)
    target: Tensor = field(repr=False)

    def __getitem__(self, name: str) -> Outcome:
        for one in self.checks:
            if one.name == name:
                return one
        raise KeyError(f"no check {name!r}; there are: {', '.join(c.name for c in self.checks)}")

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}"]
        lines += [f"  - {reason}" for reason in self.reasons]
        lines += [f"method: {self.method} ({self.why})", ""]
        width = max(len(c.title) for c in self.checks)
        for one in self.checks:
            tail = one.threshold if one.outcome != "skipped" else one.note
            lines.append(f"{one.title:<{width}}  {short(one.value):>8}  {one.outcome:<8}  {tail}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data, without samples."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "checks": [c.to_dict() for c in self.checks],
            "method": self.method,
            "why": self.why,
            "parameters": list(self.parameters),
            "about": self.about,
        }

    def to_html(self, path: str | Path) -> Path:
        """Writes the report to one self-contained HTML file and returns its path."""
        from reprior.diagnostics.html import write_html

        return write_html(self, path)


def diagnose(
    adapted: AdaptedPosterior,
    x: Tensor | Sequence[float] | None = None,
    seed: int = 0,
    settings: DiagnoseSettings | None = None,
    calibration: Calibration | None = None,
    progress: bool = False,
) -> Report:
    """Checks an adapted posterior, at one observation or at stored ones that are likely under q.

    Arguments:
        adapted: the adapted posterior.
        x: one observation, with shape (m,) or (1, m); without it, stored observations that are likely under q.
        seed: the same seed gives the same report on the same machine.
        settings: how much is drawn, and the thresholds.
        calibration: one made before by `calibrate` for this adapted posterior, to be used again.
        progress: show a bar over the observations and the checks.
    """
    if not isinstance(adapted, AdaptedPosterior):
        raise InputError(f"diagnose needs an adapted posterior, from reprior.adapt; got {type(adapted).__name__}")
    settings, seed, began = settings or DiagnoseSettings(), check_seed(seed), time.monotonic()
    if x is None:
        observations = typical_x(adapted, settings.observations, seed)
    else:
        observations = check_x(torch.as_tensor(x), adapted.x_dim, single=True)
    with tqdm(total=len(observations) + len(CHECKS), desc="diagnose", disable=not progress) as bar:
        scenes = []
        for i, row in enumerate(observations):
            scenes.append(make_scene(adapted, row.unsqueeze(0), settings.pool, settings.draws, seed + 1 + i))
            bar.update()
        case = Case(adapted, tuple(scenes), seed, settings, calibration)
        checks = []
        for check in CHECKS:
            bar.set_postfix_str(check.name)
            checks.append(judge(check, check.look(case), settings.thresholds))
            bar.update()
    verdict, reasons = conclude(checks)
    n = min(SHOWN, 2 * settings.draws)
    return Report(
        verdict,
        reasons,
        tuple(checks),
        adapted.method.name,
        adapted.why,
        _about(case, x is None, time.monotonic() - began),
        adapted.posterior.parameters,
        case.scenes,
        case.calibration,
        priors.sample(adapted.posterior.prior, n, seed),
        adapted.change.draw(n, seed + 1),
    )


def conclude(checks: Sequence[Outcome]) -> tuple[str, tuple[str, ...]]:
    """The verdict and its reasons, the gravest first."""
    stops = [c for c in checks if c.outcome == "stop"]
    cautions = [c for c in checks if c.outcome == "caution"]
    if not stops and not cautions:
        made = sum(c.outcome == "pass" for c in checks)
        return VERDICTS[0], (f"All {made} checks that could be made are within their thresholds.",)
    return VERDICTS[2] if stops else VERDICTS[1], tuple(c.reason for c in [*stops, *cautions])


def _about(case: Case, typical: bool, seconds: float) -> dict[str, Any]:
    posterior, settings = case.posterior, case.settings
    about = {
        "reprior": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seed": case.seed,
        "seconds": round(seconds, 1),
        "base": type(posterior.base).__name__,
        "noise": posterior.base.noise,
        "simulations": 0 if posterior.simulations is None else len(posterior.simulations),
        "target_kind": case.change.kind,
        "warnings": list(case.adapted.warnings),
        "observation": None if typical else [float(v) for v in case.scenes[0].x[0]],
        "observations": len(case.scenes),
        "draws": settings.draws,
        "pool": settings.pool,
        "pairs": round(case.calibration.n_eff, 1),
        "ranks": settings.ranks,
    }
    try:
        return about | {"sbi": metadata.version("sbi")}
    except metadata.PackageNotFoundError:  # an extra
        return about
