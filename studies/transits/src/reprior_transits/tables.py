"""The tables of a light-curve study: what the posterior says after each window, and how it compares at the end.

- steps: after window n, the median, the standard deviation and the central 68 % of each parameter of interest, for each
  run (a method, or a shuffled order of the windows).
- errors: after window n, the normalised RMSE of each run,

      mean over (k, a, inc, P) of sqrt(mean over samples of (theta - reference)^2) / (prior standard deviation).

- final: the last posterior against a conventional fit of the same data and the published values. The distance to the fit is

      z = (median - fitted value) / sqrt(sd^2 + fit error^2).

- agreement: how far two posteriors are apart, in the parameters of interest.

Inclinations are folded to at most 90 degrees throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior.diagnostics import c2st
from reprior_transits.targets import Reference
from reprior_transits.transit_prior import PARAMETERS, STD, fold_inclination

__all__ = ["INTEREST", "agreement", "agreements", "error_rows", "final_rows", "normalised_rmse", "step_rows", "summary"]

INTEREST = ("k", "a", "inc", "P")
COLUMNS = [PARAMETERS.index(name) for name in INTEREST]
Row = dict[str, Any]


def summary(theta: Tensor) -> dict[str, tuple[float, float, float, float]]:
    """Median, standard deviation, 16 % and 84 % quantiles of the parameters of interest, by name.

    Arguments:
        theta: samples, with shape (n, 8).
    """
    folded = fold_inclination(theta)[:, COLUMNS].double()
    low, middle, high = torch.quantile(folded, folded.new_tensor([0.1587, 0.5, 0.8413]), dim=0)
    return {
        name: (float(middle[i]), float(folded[:, i].std()), float(low[i]), float(high[i]))
        for i, name in enumerate(INTEREST)
    }


def normalised_rmse(theta: Tensor, reference: Reference) -> float:
    """The normalised RMSE of samples, with shape (n, 8), about a reference; see the top of this file."""
    gap = fold_inclination(theta)[:, COLUMNS].double() - torch.as_tensor(reference.theta)
    return float((gap.square().mean(0).sqrt() / torch.tensor([STD[i] for i in COLUMNS], dtype=torch.float64)).mean())


def step_rows(runs: Mapping[str, Sequence[Tensor]], mid_times: np.ndarray) -> list[Row]:
    """The table of steps.

    Arguments:
        runs: for each run, the samples after each window, each with shape (n, 8).
        mid_times: of the windows in the order of time, for runs in that order.
    """
    return [
        {
            "run": run,
            "n": n,
            "mid_time": f"{mid_times[n - 1]:.4f}" if run != "shuffled" else "",
            "parameter": name,
            **_numbers(values),
        }
        for run, steps in runs.items()
        for n, theta in enumerate(steps, start=1)
        for name, values in summary(theta).items()
    ]


def error_rows(runs: Mapping[str, Sequence[Tensor]], published: Reference, fit: Reference) -> list[Row]:
    """The table of errors: the normalised RMSE after each window, about the published values and about the fit."""
    return [
        {
            "run": run,
            "n": n,
            "rmse_published": round(normalised_rmse(theta, published), 4),
            "rmse_fit": round(normalised_rmse(theta, fit), 4),
        }
        for run, steps in runs.items()
        for n, theta in enumerate(steps, start=1)
    ]


def final_rows(posteriors: Mapping[str, Tensor], published: Reference, fit: Reference) -> list[Row]:
    """The table of final posteriors against the conventional fit.

    Arguments:
        posteriors: for each kind of posterior, its samples, with shape (n, 8).
        published: published values.
        fit: the conventional fit of the same data; NaN where it has no value or no error.
    """
    rows = []
    for label, theta in posteriors.items():
        for i, (name, values) in enumerate(summary(theta).items()):
            value, error = fit.theta[i], fit.errors[i]
            z = (values[0] - value) / math.hypot(values[1], error) if math.isfinite(error) else math.nan
            rows.append(
                {
                    "posterior": label,
                    "parameter": name,
                    **_numbers(values),
                    "fit": _short(value),
                    "fit_error": _short(error),
                    "z": "" if math.isnan(z) else f"{z:+.2f}",
                    "published": _short(published.theta[i]),
                }
            )
    return rows


def agreement(one: Tensor, other: Tensor) -> dict[str, float]:
    """How well two sets of samples, with shape (n, 8), agree in the parameters of interest.

    Returns: for each, the difference of the medians in standard deviations of the first, and the C2ST of all four (boosted
    trees), on as many samples of one as of the other.
    """
    first, second = summary(one), summary(other)
    shifts = {f"shift_{name}": (second[name][0] - first[name][0]) / first[name][1] for name in INTEREST}
    a, b = (fold_inclination(theta)[:, COLUMNS] for theta in (one, other))
    return {**shifts, "c2st": c2st(a, b)}


def agreements(runs: Mapping[str, list[Tensor]]) -> dict[str, float]:
    """`agreement` of the last posterior with that of the shuffled windows, and of the exact one with it."""
    last = runs["accumulate"][-1]
    pairs = {"shuffled": (last, runs["shuffled"][-1])}
    if "exact" in runs:
        pairs["exact"] = (runs["exact"][-1], last)
    return {f"{run}_{name}": v for run, pair in pairs.items() for name, v in agreement(*pair).items()}


def _numbers(values: tuple[float, float, float, float]) -> Row:
    return dict(zip(("median", "sd", "q16", "q84"), map(_short, values), strict=True))


def _short(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"
