"""Can this adapted posterior be trusted? `diagnose` makes the checks and gives a `Report`.

The verdict is the worst of the checks: "do not trust" if one stops, "caution" if one calls for it, "ok" otherwise.
Checks that could not be made are listed with the reason. Every check uses what is stored: no simulator is called.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior import priors
from reprior._version import __version__
from reprior.adapted import AdaptedPosterior
from reprior.diagnostics.base import LeftOver, find_left_over, simulations_behind
from reprior.diagnostics.calibration import Calibration, calibrate
from reprior.diagnostics.checks import Check, Thresholds, check, short, skipped
from reprior.diagnostics.compare import (
    LARGEST_DIM,
    Comparison,
    against_reweighted,
    agreement,
    correction_ess,
)
from reprior.diagnostics.draws import Scene, make_scene, typical_x
from reprior.distance import x_distance
from reprior.errors import InputError
from reprior.posterior import Posterior, check_x
from reprior.weights import pareto_k, share

__all__ = ["DiagnoseSettings", "Report", "diagnose"]

VERDICTS = ("ok", "caution", "do not trust")
LEAST_SIMULATIONS = 1_000  # for the checks of the base


@dataclass(frozen=True)
class DiagnoseSettings:
    """How much a diagnosis draws.

    Attributes:
        draws: adapted samples at each observation.
        pool: base samples at each observation.
        observations: without x, how many stored observations are looked at.
        pairs: stored pairs for calibration (a third of them where a method resamples a pool at each); 0 leaves it out.
        ranks: adapted samples at each pair.
        thresholds: where the lines are drawn.
    """

    draws: int = 3_000
    pool: int = 4_000
    observations: int = 3
    pairs: int = 240
    ranks: int = 40
    thresholds: Thresholds = field(default_factory=Thresholds)

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


@dataclass(frozen=True)
class Report:
    """The verdict on an adapted posterior, and what it rests on.

    Attributes:
        verdict: "ok", "caution" or "do not trust".
        reasons: why, in plain words; each names a figure and its threshold.
        checks: every check.
        method: the method that was judged.
        why: why this method.
        about: versions, seeds, sizes.
        parameters: the names of the parameters.
        scenes: the samples at each observation that was looked at.
        calibration: the calibration figures.
        prior: draws of p, with shape (n, d).
        target: draws of q, with shape (n, d).
    """

    verdict: str
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]
    method: str
    why: str
    about: dict[str, Any]
    parameters: tuple[str, ...]
    scenes: tuple[Scene, ...] = field(repr=False)
    calibration: Calibration = field(repr=False)
    prior: Tensor = field(repr=False)
    target: Tensor = field(repr=False)

    def __getitem__(self, name: str) -> Check:
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
            shown = short(one.value)
            tail = one.threshold if one.outcome != "skipped" else one.note
            lines.append(f"{one.title:<{width}}  {shown:>8}  {one.outcome:<8}  {tail}")
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
) -> Report:
    """Checks an adapted posterior, at one observation or where the target prior puts observations.

    Arguments:
        adapted: the adapted posterior.
        x: one observation, with shape (m,) or (1, m); without it, stored observations under q are looked at.
        seed: the same seed gives the same report on the same machine.
        settings: how much is drawn, and the thresholds.
        calibration: one made before by `calibrate` for this adapted posterior, to be used again.
    """
    if not isinstance(adapted, AdaptedPosterior):
        raise InputError(f"diagnose needs an adapted posterior, from reprior.adapt; got {type(adapted).__name__}")
    settings = settings or DiagnoseSettings()
    began = time.monotonic()
    observations = (
        typical_x(adapted.posterior, adapted.change, settings.observations, seed)
        if x is None
        else check_x(torch.as_tensor(x), adapted.posterior.x_dim, single=True)
    )
    scenes = tuple(
        make_scene(adapted, row.unsqueeze(0), settings.pool, settings.draws, seed + 1 + i)
        for i, row in enumerate(observations)
    )
    if calibration is None:
        calibration = calibrate(adapted, settings.pairs, settings.ranks, seed=seed)
    checks = _checks(adapted, scenes, calibration, settings, seed)
    verdict, reasons = _conclude(checks)
    n = min(2_000, 2 * settings.draws)
    return Report(
        verdict,
        reasons,
        checks,
        adapted.method,
        adapted.why,
        _about(adapted, x is None, scenes, calibration, settings, seed, time.monotonic() - began),
        adapted.posterior.parameters,
        scenes,
        calibration,
        priors.sample(adapted.posterior.prior, n, seed),
        adapted.change.draw(n, seed + 1),
    )


def _checks(
    adapted: AdaptedPosterior,
    scenes: tuple[Scene, ...],
    calibration: Calibration,
    settings: DiagnoseSettings,
    seed: int,
) -> tuple[Check, ...]:
    lines = settings.thresholds
    return (
        _sampling(scenes, lines),
        _support(adapted, lines),
        _distance(adapted, scenes, lines, seed),
        *_base(adapted, scenes, lines, seed),
        *_weights(adapted, scenes, lines),
        _worst("correction", [_compare(correction_ess, adapted, s, seed) for s in scenes], lines),
        _worst("reweighted", [_compare(against_reweighted, adapted, s, seed) for s in scenes], lines),
        _worst("agreement", [_compare(agreement, adapted, s, seed + 11) for s in scenes], lines),
        *_calibration(calibration, lines),
    )


def weight_of(name: str, method: str) -> str:
    """The worst outcome that a check may have alone: "stop" or "caution"; "info" where it is not judged."""
    if name == "pairs":
        return "caution"
    return "info" if name == "k_hat" and method != "sir" else "stop"


def _sampling(scenes: tuple[Scene, ...], lines: Thresholds) -> Check:
    worst = min(scenes, key=lambda s: s.finite)
    return check("sampling", worst.finite, lines, worst.failed)


def _support(adapted: AdaptedPosterior, lines: Thresholds) -> Check:
    outside = adapted.change.outside
    if math.isnan(outside):
        return skipped("support", "the target prior is known by its log-density only", lines)
    return check("support", outside, lines)


def _distance(adapted: AdaptedPosterior, scenes: tuple[Scene, ...], lines: Thresholds, seed: int) -> Check:
    simulations, scale = adapted.posterior.simulations, adapted.posterior.scales.x
    if simulations is None:
        return skipped("distance", "no stored simulations are attached", lines)
    return check("distance", max(x_distance(simulations, scale, s.x, seed) for s in scenes), lines)


def _base(adapted: AdaptedPosterior, scenes: tuple[Scene, ...], lines: Thresholds, seed: int) -> list[Check]:
    """The base's own error at the observations."""
    posterior = adapted.posterior
    names = ("behind", "leftover")
    if posterior.simulations is None:
        return [skipped(name, "no stored simulations are attached", lines) for name in names]
    if len(posterior.simulations) < LEAST_SIMULATIONS:
        why = f"{len(posterior.simulations)} stored simulations are too few to judge by"
        return [skipped(name, why, lines) for name in names]
    if posterior.dim > LARGEST_DIM:
        first = skipped("behind", f"densities are dear beyond {LARGEST_DIM} parameters", lines)
    else:
        first = _behind(posterior, scenes, lines)
    if not isinstance(posterior, Posterior):
        return [first, skipped("leftover", "this base is no diffusion: it has no denoised mean", lines)]
    left = find_left_over(posterior, seed)
    if not all(s.usable for s in scenes):
        return [first, skipped("leftover", "there are too few adapted samples", lines)]
    worst = max((_missed(left, adapted, s) for s in scenes), key=lambda pair: pair[0])
    note = "" if worst[0] == 0 else f"In {worst[1]}; held-out R² {float(left.r2.max()):.2g}."
    return [first, check("leftover", worst[0], lines, note)]


def _behind(posterior: Posterior, scenes: tuple[Scene, ...], lines: Thresholds) -> Check:
    try:
        return check("behind", min(simulations_behind(posterior, s.x, s.base) for s in scenes), lines)
    except InputError as error:  # an sbi posterior whose density is not normalised
        return skipped("behind", str(error), lines)


def _missed(left: LeftOver, adapted: AdaptedPosterior, scene: Scene) -> tuple[float, str]:
    """The largest missed shift, in standard deviations of the adapted posterior, and its parameter."""
    # A likelihood that is off by a shift moves the posterior by it times the variance, so the narrower one less.
    narrower = (scene.adapted.std(0) / scene.base.std(0).clamp(min=1e-12)).clamp(max=2).double()
    shift = (left.shift(adapted.posterior, scene.x) * narrower).abs()
    i = int(shift.argmax())
    return float(shift[i]), adapted.posterior.parameters[i]


def _weights(adapted: AdaptedPosterior, scenes: tuple[Scene, ...], lines: Thresholds) -> list[Check]:
    ess = sorted(share(s.log_r) for s in scenes)[len(scenes) // 2]
    k_hat = sorted(pareto_k(s.log_r) for s in scenes)[len(scenes) // 2]
    note = "" if len(scenes) == 1 else f"Median over {len(scenes)} observations."
    if math.isnan(k_hat):
        tail = skipped("k_hat", "arviz-stats is not installed (it needs Python 3.11)", lines)
    else:
        most = weight_of("k_hat", adapted.method)
        told = "" if adapted.method == "sir" else "For information: this method does not average under these weights."
        tail = check("k_hat", k_hat, lines, told, most)
    return [check("ess", ess, lines, note), _gap(scenes, lines), tail]


def _gap(scenes: tuple[Scene, ...], lines: Thresholds) -> Check:
    """KL(q(theta | x) || p(theta | x)) = E_q[log r] - log Z, with Z the mean of r over base draws."""
    if not all(s.usable for s in scenes):
        return skipped("gap", "there are too few adapted samples", lines)
    found = [float(s.log_r_adapted.mean() - torch.logsumexp(s.log_r, 0)) + math.log(len(s.log_r)) for s in scenes]
    return check("gap", max(0.0, sorted(found)[len(found) // 2]), lines)


def _compare(
    what: Callable[[AdaptedPosterior, Scene, int], Comparison], adapted: AdaptedPosterior, scene: Scene, seed: int
) -> Comparison:
    if not scene.usable:
        return Comparison(math.nan, "there are too few adapted samples")
    return what(adapted, scene, seed)


def _worst(name: str, found: list[Comparison], lines: Thresholds) -> Check:
    """The worst of a figure over observations."""
    made = [one for one in found if not math.isnan(one.value)]
    if not made:
        return skipped(name, found[0].note, lines)
    pick = min if name == "correction" else max
    worst = pick(made, key=lambda one: one.value)
    return check(name, worst.value, lines, worst.note)


def _calibration(calibration: Calibration, lines: Thresholds) -> list[Check]:
    if math.isnan(calibration.effective):
        return [skipped(name, calibration.why_not, lines) for name in ("pairs", "sbc", "tarp")]
    if calibration.failed:
        failed = [check(name, math.nan, lines, f"{calibration.why_not}.", "caution") for name in ("sbc", "tarp")]
        return [check("pairs", calibration.effective, lines, most="caution"), *failed]
    if calibration.why_not:
        pairs = check("pairs", calibration.effective, lines, f"Not calibrated: {calibration.why_not}.", "caution")
        return [pairs, *(skipped(name, calibration.why_not, lines) for name in ("sbc", "tarp"))]
    spread = max(calibration.spread, key=lambda v: abs(math.log(max(v, 1e-3))))
    note = ""
    if calibration.sbc_p < lines.sbc[0] and abs(spread - 1) > 0.05:
        note = f"The adapted posterior looks too {'narrow' if spread > 1 else 'wide'}."
    return [
        check("pairs", calibration.effective, lines, most="caution"),
        check("sbc", calibration.sbc_p, lines, note),
        check("tarp", calibration.tarp_p, lines),
    ]


def _conclude(checks: tuple[Check, ...]) -> tuple[str, tuple[str, ...]]:
    """The verdict and its reasons, the gravest first."""
    stops = [c for c in checks if c.outcome == "stop"]
    cautions = [c for c in checks if c.outcome == "caution"]
    verdict = VERDICTS[2] if stops else VERDICTS[1] if cautions else VERDICTS[0]
    if verdict == "ok":
        made = sum(c.outcome == "pass" for c in checks)
        return verdict, (f"All {made} checks that could be made are within their thresholds.",)
    return verdict, tuple(c.reason for c in [*stops, *cautions])


def _about(
    adapted: AdaptedPosterior,
    typical: bool,
    scenes: tuple[Scene, ...],
    calibration: Calibration,
    settings: DiagnoseSettings,
    seed: int,
    seconds: float,
) -> dict[str, Any]:
    import sbi

    posterior = adapted.posterior
    return {
        "reprior": __version__,
        "torch": torch.__version__,
        "sbi": sbi.__version__,
        "python": platform.python_version(),
        "seed": seed,
        "seconds": round(seconds, 1),
        "base": type(posterior.base).__name__,
        "noise": posterior.base.noise,
        "simulations": 0 if posterior.simulations is None else len(posterior.simulations),
        "target_kind": adapted.change.kind,
        "warnings": list(adapted.warnings),
        "observation": None if typical else [float(v) for v in scenes[0].x[0]],
        "observations": len(scenes),
        "draws": settings.draws,
        "pool": settings.pool,
        "pairs": round(calibration.n_eff, 1),
        "ranks": settings.ranks,
    }
