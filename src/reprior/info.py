"""The record of a call of `sample`.

`sample` draws; `Info` judges, and only on request. ESS, k-hat and warnings are computed at their first use, from base draws
that the method made anyway, or from new ones if it made none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from reprior.weights import pareto_k, relative_ess

__all__ = ["Info"]

MANY_REJECTED = 0.5  # fraction of draws outside the support above which there is a warning


def _no_weights() -> Tensor | None:
    return None


def _nothing() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Info:
    """What a call of `sample` did.

    Attributes:
        method: the name of the method that drew the samples ("base" for an unchanged posterior).
        n: the number of samples per observation.
        observations: the number K of observations.
        seconds: the time it took.
        rejected: the fraction of draws that fell outside the support (of p, or of q) and were drawn again.
        why: one sentence: why this method.
        told: what was done at each observation, in one sentence each; () if there is nothing to say.
        failed: the observations (counted from 0) that could not be drawn, whose rows are NaN, each with the reason.
        figures: figures of the method by name, each with one number for each observation.
        weights: log importance weights of the draws, with shape (n,), if ``correct="weights"`` asked for them.
        notes: warnings that hold for every x.
    """

    method: str
    n: int
    observations: int
    seconds: float
    rejected: float = 0.0
    why: str = ""
    told: tuple[str, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    figures: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    weights: Tensor | None = field(default=None, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    _log_w: Callable[[], Tensor | None] = field(default=_no_weights, repr=False)
    _distant: Callable[[], tuple[str, ...]] = field(default=_nothing, repr=False)

    @cached_property
    def log_w(self) -> Tensor | None:
        """Log prior-ratio weights of base draws at the observations, with shape (draws, K); None for a base."""
        return self._log_w()

    @cached_property
    def relative_ess(self) -> tuple[float, ...]:
        """The relative ESS of the prior-ratio weights at each observation; () for a base."""
        return () if self.log_w is None else tuple(relative_ess(w) for w in self.log_w.unbind(1))

    @cached_property
    def k_hat(self) -> tuple[float, ...]:
        """The Pareto k-hat of these weights at each observation; () for a base."""
        return () if self.log_w is None else tuple(pareto_k(w) for w in self.log_w.unbind(1))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What the caller should know, in plain words."""
        found = [
            *self.notes,
            *(f"observation {k} (counted from 0) was not drawn: {why}" for k, why in self.failed.items()),
        ]
        from reprior.diagnostics import CHECKS  # one set of thresholds: those of `reprior.diagnose`

        caution = {check.name: check.caution for check in CHECKS}
        if self.relative_ess and min(self.relative_ess) < caution["ess"]:
            found.append(
                f"the relative ESS of the prior-ratio weights is {min(self.relative_ess):.2g}: few base samples lie where the "
                "target prior puts the posterior"
            )
        elif self.k_hat and max(self.k_hat) > caution["k_hat"]:
            found.append(
                f"Pareto k-hat of the prior-ratio weights is {max(self.k_hat):.2f} (> {caution['k_hat']}): heavy-tailed weights"
            )
        if self.rejected > MANY_REJECTED:
            cut = "the target prior cuts off most of the base posterior, or " if self.why else ""
            found.append(
                f"{100 * self.rejected:.0f} % of the draws fell outside the support: {cut}the base does not fit this "
                "observation"
            )
        return (*found, *self._distant())

    def __str__(self) -> str:
        lines = [
            f"method        {self.method}" + (f": {self.why}" if self.why else ""),
            f"samples       {self.n} for {self.observations} observation(s) in {self.seconds:.1f} s",
            f"rejected      {100 * self.rejected:.2f} % outside the support",
        ]
        if self.told:
            lines.append(f"what was done {self.told[0]}" + (" ..." if len(set(self.told)) > 1 else ""))
        figures = (
            {"relative ESS": self.relative_ess, "k-hat": self.k_hat, **self.figures}
            if self.relative_ess
            else dict(self.figures)
        )
        lines += [f"{name:<13} {_short(values)}" for name, values in figures.items()]
        lines += [f"warning       {text}" for text in self.warnings]
        return "\n".join(lines)


def _short(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{v:.4g}" for v in values[:8])
    return shown + (f", ... ({len(values)} in all)" if len(values) > 8 else "")
