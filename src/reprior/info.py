"""What `sample` did, beside the samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Info"]


@dataclass(frozen=True)
class Info:
    """What a call of `sample` did.

    Attributes:
        method: the method that drew the samples ("base" for an unchanged posterior).
        n: the number of samples per observation.
        observations: the number of observations.
        seconds: the time it took.
        rejected: the fraction of draws that fell outside the support (of the prior, or of the target prior) and were drawn again.
        why: one sentence: why this method.
        warnings: what the caller should know, in plain words.
        details: figures of the method (ESS/N, k-hat, duplicates, ...), each a number or a list of one per observation.
    """

    method: str
    n: int
    observations: int
    seconds: float
    rejected: float
    why: str = ""
    warnings: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ess(self) -> Any:
        """ESS/N of the prior-ratio weights: a number, or a list of one per observation; None for an unchanged posterior."""
        return self.details.get("ess")

    @property
    def k_hat(self) -> Any:
        """The Pareto shape k-hat of these weights, likewise."""
        return self.details.get("k_hat")

    def __str__(self) -> str:
        lines = [
            f"method      {self.method}" + (f": {self.why}" if self.why else ""),
            f"samples     {self.n} for {self.observations} observation(s) in {self.seconds:.1f} s",
            f"rejected    {100 * self.rejected:.2f} % outside the support",
        ]
        lines += [f"{name:<11} {_short(value)}" for name, value in self.details.items()]
        lines += [f"warning     {text}" for text in self.warnings]
        return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_short(v) for v in value[:8])
        return shown + (f", ... ({len(value)} in all)" if len(value) > 8 else "")
    return str(value)
