"""What a sequential update returns: one `Update` for each observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.info import Info
from reprior.posterior import Posterior

__all__ = ["Update", "Updates", "verdict_of"]

TRUSTED, DOUBTED = 0.8, 0.3  # ESS/N of the weights between exact and fitted sum
FAR = 1.0  # a shift of the mean by the Metropolis moves, in standard deviations, that they may not have finished
FEW, VERY_FEW = 20.0, 2.0  # base draws that the carried prior leaves over
HEAVY = 0.7  # k-hat


@dataclass(frozen=True)
class Update:
    """The posterior after n observations.

    Attributes:
        n: the number of observations so far.
        x: the n-th observation, with shape (m,).
        adapted: p(theta | x_1..n) as a posterior adapted to the carried prior, to be asked at x; the base's own for n = 1.
        samples: draws of p(theta | x_1..n), with shape (samples, d). Nuisance parameters are those of the n-th observation.
        info: how they were drawn.
        verdict: "ok", or "caution" or "do not trust" with the reason.
    """

    n: int
    x: Tensor
    adapted: Posterior | AdaptedPosterior
    samples: Tensor
    info: Info
    verdict: str


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
            lines.append(f"{one.n:>3}  " + "  ".join(cells) + f"  {one.verdict}")
        return "\n".join(lines)


def verdict_of(info: Info, pool: int) -> str:
    """A cheap verdict from the figures of one update; `reprior.diagnose` of its adapted posterior says more.

    Arguments:
        info: the info of the update.
        pool: the number of base draws behind its ESS.
    """
    details = info.details
    left = details.get("ess", 1.0) * pool
    few = f"about {left:.0f} of {pool} base draws at this observation agree with those before it"
    if "agreement" in details:  # the samples were moved under the exact sum: few draws to begin with do no harm
        agreement, moved = details["agreement"], details.get("moved", 0.0)
        if agreement < TRUSTED:
            word = "caution" if agreement >= DOUBTED else "do not trust"
            how = "differs from the exact one" if agreement > 0 else "could not be compared with the exact one"
            return f"{word}: the fitted sum of log-densities {how} (ESS/N {agreement:.2f})"
        if moved > FAR:
            return f"caution: the guided draws were {moved:.1f} standard deviations off before they were moved"
        return "ok" if left >= VERY_FEW else f"caution: {few}"
    if left < FEW:
        return f"{'caution' if left >= VERY_FEW else 'do not trust'}: {few}"
    if details.get("k_hat", 0.0) > HEAVY:
        return f"caution: heavy-tailed weights of the carried prior (k-hat {details['k_hat']:.2f})"
    if details.get("unchecked"):
        return "caution: the carried prior was learned from samples, and nothing checks the errors that add up"
    return "ok"
