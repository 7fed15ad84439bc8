"""A case: an adapted posterior with the draws to judge it. All checks share them, so that nothing is drawn twice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from reprior.adapted import AdaptedPosterior
from reprior.change import PriorChange
from reprior.diagnostics.calibration import Calibration, calibrate
from reprior.diagnostics.check import Check
from reprior.diagnostics.draws import Scene
from reprior.posterior import Posterior
from reprior.simulations import Simulations

if TYPE_CHECKING:
    from reprior.diagnostics.report import DiagnoseSettings

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """The input of the checks.

    Attributes:
        adapted: the adapted posterior.
        scenes: the samples at each observation.
        seed: the seed of draws that a check makes itself.
        settings: how much is drawn.
        given: a calibration that was made before; None makes one when it is first needed.
    """

    adapted: AdaptedPosterior
    scenes: tuple[Scene, ...]
    seed: int
    settings: DiagnoseSettings
    given: Calibration | None = None

    @property
    def posterior(self) -> Posterior:
        """The base posterior."""
        return self.adapted.posterior

    @property
    def change(self) -> PriorChange:
        """The change of prior."""
        return self.adapted.change

    @property
    def simulations(self) -> Simulations | None:
        """The stored pairs, or None."""
        return self.adapted.posterior.simulations

    @property
    def denoises(self) -> bool:
        """Whether the base has a denoised mean; a posterior of sbi that can only be sampled has none."""
        return not hasattr(self.posterior.condition(self.scenes[0].x), "draws")

    def threshold(self, check: Check) -> tuple[float, float]:
        """(caution, stop) of a check in this report."""
        return self.settings.thresholds.get(check.name, (check.caution, check.stop))

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration on stored pairs under q."""
        if self.given is not None:
            return self.given
        return calibrate(self.adapted, self.settings.pairs, self.settings.ranks, seed=self.seed)
