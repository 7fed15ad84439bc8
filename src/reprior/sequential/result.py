"""What a sequential update returns: one `Update` for each observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.info import Info
from reprior.posterior import Posterior

if TYPE_CHECKING:
    from reprior.diagnostics.check import Outcome

__all__ = ["Update", "Updates"]


@dataclass(frozen=True)
class Update:
    """The posterior after n observations.

    Attributes:
        n: the number of observations so far.
        x: the n-th observation, with shape (m,).
        adapted: p(theta | x_1..n) as a posterior adapted to the carried prior, to be asked at x; the base's own for n = 1.
        samples: draws of p(theta | x_1..n), with shape (samples, d). Nuisance parameters are those of the n-th observation.
        info: how they were drawn; with ``accumulate``, ``info.figures`` holds "agreement" (relative ESS of the weights between
            the exact sum of log-densities and its fit), "fit_error" (standard deviation of their difference, in nats),
            "accepted" and "moved" (fraction of accepted Metropolis moves, and how far they shifted the mean, in standard
            deviations).
    """

    n: int
    x: Tensor
    adapted: Posterior | AdaptedPosterior
    samples: Tensor
    info: Info

    @cached_property
    def checks(self) -> tuple[Outcome, ...]:
        """Quick checks of the update, made when they are asked for; `reprior.diagnose` of `adapted` makes more."""
        from reprior.sequential.checks import check_update

        learned = isinstance(self.adapted, AdaptedPosterior) and self.adapted.change.kind == "samples"
        return check_update(self.info, learned)

    @property
    def verdict(self) -> str:
        """The worst of the checks: "ok", "caution" or "do not trust"."""
        return self._conclusion[0]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in plain words, the gravest first; each names a figure and its threshold."""
        return self._conclusion[1]

    @cached_property
    def _conclusion(self) -> tuple[str, tuple[str, ...]]:
        from reprior.diagnostics.report import conclude

        return conclude(self.checks)


class Updates(Sequence[Update]):
    """The updates of a run, one for each observation.

    Arguments:
        items: the updates.
        parameters: the names of the parameters.
    """

    def __init__(self, items: Sequence[Update], parameters: tuple[str, ...]):
        self.items, self.parameters = tuple(items), parameters

    @overload
    def __getitem__(self, index: int) -> Update: ...
    @overload
    def __getitem__(self, index: slice) -> Updates: ...
    def __getitem__(self, index: Any) -> Any:
        return Updates(self.items[index], self.parameters) if isinstance(index, slice) else self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        """One line for each observation: mean and standard deviation of each parameter, and the verdict."""
        lines = ["  n  " + "  ".join(f"{name:>18}" for name in self.parameters) + "  verdict"]
        for one in self.items:
            mean, sd = one.samples.mean(0), one.samples.std(0)
            cells = [f"{f'{m:.4g} +- {s:.2g}':>18}" for m, s in zip(mean.tolist(), sd.tolist(), strict=True)]
            why = "" if one.verdict == "ok" else f": {one.reasons[0]}"
            lines.append(f"{one.n:>3}  " + "  ".join(cells) + f"  {one.verdict}{why}")
        return "\n".join(lines)
