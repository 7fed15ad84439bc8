"""From files to a report: what `reprior report` calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.diagnostics.report import DiagnoseSettings, Report, diagnose
from reprior.errors import FileFormatError, InputError
from reprior.loading import load
from reprior.simulations import Simulations

__all__ = ["read_x", "run_report"]


def run_report(
    adapted_path: str | Path,
    x: str | Path | Sequence[float] | Tensor | None,
    out: str | Path,
    seed: int = 0,
    simulations: str | Path | None = None,
    settings: DiagnoseSettings | None = None,
) -> Report:
    """Reads an adapted posterior, diagnoses it and writes the HTML report.

    Arguments:
        adapted_path: the file that `AdaptedPosterior.save` wrote.
        x: the observation: its numbers, or a file of them (.npy, or text with one row); None takes stored ones that are
            likely under q.
        out: the HTML file.
        seed: the same seed gives the same report on the same machine.
        simulations: the file of the stored simulations, where the adapted posterior was saved without them.
        settings: how much is drawn, and the thresholds.
    """
    adapted = load(adapted_path)
    if not isinstance(adapted, AdaptedPosterior):
        raise InputError(
            f"{adapted_path} holds a posterior whose prior was not changed; save an adapted one: "
            "reprior.adapt(posterior, q).save(path)"
        )
    if simulations is not None:
        stored = Simulations.load(simulations, prior=adapted.posterior.prior)
        adapted = replace(adapted, posterior=adapted.posterior.with_simulations(stored.theta, stored.x))
    observed = None if x is None else read_x(x)
    report = diagnose(adapted, observed, seed, settings)
    report.to_html(out)
    return report


def read_x(x: str | Path | Sequence[float] | Tensor) -> Tensor:
    """An observation from its numbers or from a file, with shape (m,)."""
    if not isinstance(x, (str, Path)):
        return torch.as_tensor(x, dtype=torch.float32).reshape(-1)
    path = Path(x)
    if not path.is_file():
        raise InputError(f"there is no file {path}: x is a .npy file, a text file, or the numbers themselves")
    try:
        values = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _read_text(path)
    except ValueError as error:
        raise FileFormatError(f"{path} does not hold an observation: {error}") from error
    return torch.as_tensor(np.asarray(values, dtype=np.float32)).reshape(-1)


def _read_text(path: Path) -> np.ndarray:
    text = path.read_text()
    return np.array([float(word) for word in text.replace(",", " ").split()])
