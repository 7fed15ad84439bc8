"""What `train` warns of: columns of x that tell nothing, heavy tails, and a network that learned nothing."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from reprior.networks.fit import FitResult
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

__all__ = ["warn_of_columns", "warn_of_fit", "warn_of_tails"]

HEAVY = 5.0  # standard deviations, in halves of the central two thirds, that only heavy tails have
RESOLVED = 0.01  # standard deviations below which a posterior is near the lowest noise
OPEN = 0.95  # of the prior's spread that x leaves open, where it says next to nothing
COLUMNS = 256  # of x that are looked at together, which bounds the memory
LOOKED_AT = 20_000  # simulations in which heavy tails are looked for: more would show no others
SHOWN = 8  # columns that a warning names


def warn_of_tails(simulations: Simulations) -> None:
    """Warns of a parameter whose spread a few far draws make: the noise that a base learns goes with that spread."""
    spread, most = Standardizer.fit(simulations.theta).scale, Standardizer.fit(simulations.theta, robust=True).scale
    for name, wide, narrow in zip(simulations.parameters, spread.tolist(), most.tolist(), strict=True):
        if wide > HEAVY * narrow:
            warnings.warn(
                f"{name} has heavy tails: its standard deviation is {wide:.3g}, but two thirds of the simulations lie within "
                f"{narrow:.3g} of the middle, and posteriors narrower than {RESOLVED * wide:.2g} will come out too wide. Train on "
                "its logarithm, or another transform of it (with the prior of that)",
                stacklevel=4,
            )
            return


def warn_of_columns(x: Tensor) -> None:
    """Warns of entries of x that never vary, or whose spread a few far rows make."""
    some = x[:: max(1, len(x) // LOOKED_AT)]
    constant, heavy = [], []
    for first in range(0, x.shape[1], COLUMNS):
        part = x[:, first : first + COLUMNS]
        missing = part.isnan()
        low, high = part.masked_fill(missing, torch.inf).amin(0), part.masked_fill(missing, -torch.inf).amax(0)
        few = some[:, first : first + COLUMNS]
        wide, narrow = Standardizer.fit(few).scale, Standardizer.fit(few, robust=True).scale
        constant += [first + int(i) for i in (low >= high).nonzero()[:, 0]]
        heavy += [first + int(i) for i in ((wide > HEAVY * narrow) & (low < high)).nonzero()[:, 0]]
    if len(constant) == x.shape[1]:
        warnings.warn("x is the same in every simulation: it tells nothing of theta", stacklevel=4)
    elif constant:
        warnings.warn(f"{_columns(constant)} of x never vary and tell nothing: leave them out", stacklevel=4)
    if heavy:
        warnings.warn(
            f"{_columns(heavy)} of x have heavy tails: a standard deviation of more than {HEAVY:g} times what two thirds of "
            "the simulations show. What lies far out is compressed to its logarithm; where that part matters, give x on another "
            "scale (its logarithm, say)",
            stacklevel=4,
        )


def _columns(found: list[int]) -> str:
    shown = ", ".join(map(str, found[:SHOWN])) + (f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else "")
    return f"column{'s' if len(found) > 1 else ''} {shown}"


def warn_of_fit(result: FitResult, base: nn.Module, n: int, entries: int) -> None:
    """Says where held-out simulations show that no network learned anything."""
    if result.share > 0:
        return
    spread = getattr(getattr(base, "guess", None), "spread", None)
    nothing = spread is not None and bool((spread > OPEN).all())
    what = (
        "and they do not show that x tells anything of theta: the posterior is about as wide as the prior"
        if nothing
        else "and the posterior is the Gaussian about that regression, as wide as left-out simulations lie about it"
    )
    warnings.warn(
        f"no network did clearly better on held-out simulations than a linear regression of theta on x (loss {result.alone:.3f}), "
        f"so none is used, {what}. These are {n:,} simulations with {entries:,} entries of x each; if you expect more of "
        "them, make more simulations, or give fewer and more telling summaries as x",
        stacklevel=4,
    )
