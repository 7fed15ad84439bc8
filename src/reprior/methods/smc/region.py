"""The trusted region: where the simulations are. Weights, twist and verdict use this one notion.

A network extrapolates beyond its simulations, and where q is wider than p, r grows without limit there. So r counts as
zero where log p lies below the lowest log p that a simulation is likely to have had. Two exceptions, both said: where more
than a hundredth of p(theta | x) itself lies out there (what is known at that x is extrapolated as a whole), and where q
as a whole does (a shift out of p): then a draw outside counts if it lies where all but a hundredth of q is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reprior import priors
from reprior.change import PriorChange
from reprior.quadratic import Quadratic

__all__ = ["Region"]

SHIFTED = 0.05  # of the mass of q outside the region, above which q is taken to be shifted out of it
CHECKED = 10_000
WORTH = 1e-3  # of the mass of q outside, that is said


@dataclass(frozen=True)
class Region:
    """The trusted region of a change of prior.

    Arguments:
        change: log r, with the lowest log p of the simulations (``lowest_log_p``) and the log q that all but few draws of q
            exceed (``lowest_log_q``).
        outside: the mass of q (as far as p has any there) that lies outside; NaN where q cannot be sampled.
    """

    change: PriorChange
    outside: float

    @classmethod
    def of(cls, change: PriorChange) -> Region:
        """That of a change of prior."""
        if change.target is None:
            return cls(change, float("nan"))
        theta = priors.sample(change.target, CHECKED, 0)
        log_p = priors.log_prob(change.prior, theta)
        inside = torch.isfinite(log_p)
        return cls(change, float((log_p[inside] < change.lowest_log_p).float().mean()) if bool(inside.any()) else 1.0)

    def minus(self, part: Quadratic) -> Region:
        """The same region, for what is left of log r when a part is taken out of it."""
        return Region(self.change.minus(part), self.outside)

    @property
    def shifted(self) -> bool:
        """Whether q lies so far out that it cannot be held to the region."""
        return self.outside > SHIFTED

    def told(self) -> str:
        """What the region does to q, in plain words; empty if that is next to nothing."""
        if not self.outside > WORTH:
            return ""
        lies = f"{100 * self.outside:.2g} % of q lies further out than the simulations"
        return f"{lies}: the base extrapolates there" if self.shifted else f"{lies} and counts as nothing"

    def lowest(self, draws: Tensor) -> Tensor:
        """The lowest log p that counts at each observation, with shape (K,), from base draws with shape (n, K, D)."""
        return self.change.lowest_trusted(draws)

    def log_r(self, theta: Tensor, lowest: Tensor | float) -> Tensor:
        """log r, and -inf outside the region and where r is no number, with shape (*), of theta with shape (*, D)."""
        value = self.change(theta).double()
        log_p = self.change.log_p(theta).double()
        out = log_p < lowest
        if self.shifted:
            whole = value if self.change.whole is None else self.change.whole(theta)
            out = out & (log_p + whole < self.change.lowest_log_q)
        return torch.where(out, -torch.inf, value).nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
