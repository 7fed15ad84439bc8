"""The exact posteriors of a target, kept in a file; with tables and a figure, without any base model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from reprior.io import write_rows
from reprior.store import Store
from reprior_transits.exact import exact_steps
from reprior_transits.figures import steps_figure
from reprior_transits.known_period import with_period
from reprior_transits.tables import error_rows, final_rows, step_rows
from reprior_transits.targets import Target
from reprior_transits.windows import Photometry

__all__ = ["run_exact", "stored_exact"]


def stored_exact(
    x: Tensor, half_width: float, folder: str | Path, samples: int = 1_000, seed: int = 0, progress: bool = False
) -> list[Tensor]:
    """`exact_steps`, read where they were made before for the same windows, else made and kept.

    Arguments:
        x: the windows, NaN where missing, with shape (N, points).
        half_width: of the windows, in days.
        folder: where they are kept.
        samples: the number of samples after each window.
        seed: of the samples.
        progress: show a progress bar.
    """
    store = Store(folder, "exact")
    key = {"x": x, "half_width": half_width, "samples": samples, "seed": seed}
    kept = store.get(key)
    if kept is None:
        steps = exact_steps(x, half_width, samples, seed=seed, progress=progress)
        kept = store.put(key, {"theta": torch.stack(steps)})
    return list(kept.tensors["theta"])


def run_exact(
    target: Target,
    photometry: Photometry,
    folder: str | Path,
    samples: int = 1_000,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Path]:
    """The exact posterior after each window: tables and a figure.

    Arguments:
        target: what is known of the target.
        photometry: its windows.
        folder: results are written there, and the samples are kept there.
        samples: the number of samples after each window.
        seed: of the samples.
        progress: show a progress bar.

    Returns: the files written, by name.
    """
    folder, windows = Path(folder), photometry.windows
    steps = stored_exact(windows.x, target.windows.half_width, folder / "updates", samples, seed, progress)
    known = [with_period(theta, photometry.ephemeris.period, seed)[0] for theta in steps]
    runs = {"exact": steps, "exact, known period": known}
    published, fit = target.reference, target.fit
    finals = {name: run[-1] for name, run in runs.items()}
    title = f"{target.planet}: the exact posterior after each of {len(windows)} transits"
    return {
        "steps": write_rows(step_rows(runs, windows.mid_times), folder / "exact-steps.csv"),
        "errors": write_rows(error_rows(runs, published, fit), folder / "exact-errors.csv"),
        "final": write_rows(final_rows(finals, published, fit), folder / "exact-final.csv"),
        "posterior figure": steps_figure(steps, folder / "exact-posterior.png", published, fit, known, title),
    }
