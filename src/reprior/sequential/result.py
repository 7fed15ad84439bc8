"""What a sequential update returns: one `Update` for each observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.info import HIGH_K, Info
from reprior.posterior import Posterior

__all__ = ["Update", "Updates", "verdict_of"]

AGREES, DIFFERS = 0.8, 0.3  # relative ESS of the weights between exact and fitted sum: at least, and at least not below
FAR = 1.0  # standard deviations: a shift of the mean by the Metropolis moves that they may not have finished
FEW, VERY_FEW = 20.0, 2.0  # effective base draws under the carried prior: their mean is off by .2 sd, or says nothing


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


def verdict_of(info: Info, unchecked: bool = False) -> str:
    """A quick verdict from the figures of one update; `reprior.diagnose` of its adapted posterior says more.

    Arguments:
        info: the info of the update.
        unchecked: whether the carried prior was learned from samples, whose errors nothing checks.
    """
    if info.log_w is None:
        return "ok"  # the first observation: the base as it is
    pool = len(info.log_w)
    effective = info.relative_ess[0] * pool
    few = f"about {effective:.0f} of {pool} base draws at this observation agree with those before it"
    if (
        "agreement" in info.figures
    ):  # the samples were moved under the exact sum: few base draws to begin with do no harm
        agreement, moved = info.figures["agreement"][0], info.figures.get("moved", (0.0,))[0]
        if agreement < AGREES:
            word = "caution" if agreement >= DIFFERS else "do not trust"
            how = "differs from the exact one" if agreement > 0 else "could not be compared with the exact one"
            return f"{word}: the fitted sum of log-densities {how} (relative ESS {agreement:.2f})"
        if moved > FAR:
            return f"caution: the draws were {moved:.1f} standard deviations off before they were moved"
        return "ok" if effective >= VERY_FEW else f"caution: {few}"
    if effective < FEW:
        return f"{'caution' if effective >= VERY_FEW else 'do not trust'}: {few}"
    if info.k_hat[0] > HIGH_K:
        return f"caution: heavy-tailed weights of the carried prior (k-hat {info.k_hat[0]:.2f})"
    if unchecked:
        return "caution: the carried prior was learned from samples, and nothing checks the errors that add up"
    return "ok"
