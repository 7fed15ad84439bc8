"""The warnings of `train`: columns of x without information, heavy tails, and a network that learned nothing."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from reprior.networks.fit import FitResult
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

__all__ = ["warn_of_columns", "warn_of_fit", "warn_of_tails"]

HEAVY = 5.0  # standard deviation over half the central 68 % range: 1 for a Gaussian; above this the tails are heavy
RESOLVED = 0.01  # in standard deviations of the prior: narrower posteriors come close to the lowest trained noise
OPEN = 0.95  # residual spread over prior spread: above it x has next to no information on theta
COLUMNS = 256  # columns of x that are examined together, which bounds the memory
EXAMINED = 20_000  # simulations in which heavy tails are looked for: more would show no others
SHOWN = 8  # columns that a warning names; a longer list would not be read


def warn_of_tails(simulations: Simulations) -> None:
    """Warns of a parameter whose standard deviation comes from a few far draws, as it sets the scale of the noise."""
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
    """Warns of entries of x that never vary, or whose standard deviation comes from a few far rows."""
    constant, heavy = [], []
    some = x[:: max(1, len(x) // EXAMINED)]
    for first in range(0, x.shape[1], COLUMNS):
        part = x[:, first : first + COLUMNS]
        missing = part.isnan()
        low, high = part.masked_fill(missing, torch.inf).amin(0), part.masked_fill(missing, -torch.inf).amax(0)
        few = some[:, first : first + COLUMNS]
        wide, narrow = Standardizer.fit(few).scale, Standardizer.fit(few, robust=True).scale
        constant += [first + int(i) for i in (low >= high).nonzero()[:, 0]]
        heavy += [first + int(i) for i in ((wide > HEAVY * narrow) & (low < high)).nonzero()[:, 0]]
    if len(constant) == x.shape[1]:
        warnings.warn("x is the same in every simulation: it has no information on theta", stacklevel=4)
    elif constant:
        warnings.warn(f"{_columns(constant)} of x never vary and have no information: leave them out", stacklevel=4)
    if heavy:
        warnings.warn(
            f"{_columns(heavy)} of x have heavy tails: the standard deviation is more than {HEAVY:g} times that of the central "
            "two thirds of the simulations. Values far out are compressed to their logarithm; if they matter, give x on "
            "another scale (its logarithm, for instance)",
            stacklevel=4,
        )


def _columns(found: list[int]) -> str:
    shown = ", ".join(map(str, found[:SHOWN])) + (f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else "")
    return f"column{'s' if len(found) > 1 else ''} {shown}"


def warn_of_fit(result: FitResult, base: nn.Module, n: int, entries: int) -> None:
    """Warns if held-out simulations do not show that the network learned anything."""
    if result.factor > 0:
        return
    spread = getattr(getattr(base, "guess", None), "spread", None)
    nothing = spread is not None and bool((spread > OPEN).all())
    what = (
        "and x shows no information on theta: the posterior is about as wide as the prior"
        if nothing
        else "and the posterior is a Gaussian about that regression, with the width of its residuals on left-out simulations"
    )
    warnings.warn(
        f"no network did clearly better on held-out simulations than a linear regression of theta on x (loss {result.alone:.3f}), "
        f"so none is used, {what}. There are {n:,} simulations with {entries:,} entries of x each; if you expect more "
        "information in them, make more simulations, or give fewer and more informative summaries as x",
        stacklevel=4,
    )
