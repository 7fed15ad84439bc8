"""The methods that only a paper compares with, registered with the library through its public door.

Importing this package makes them known to `reprior.adapt` and `reprior.load` by name. One file each.
"""

from __future__ import annotations

from reprior.methods import register
from reprior_bench.methods.analytic import Analytic
from reprior_bench.methods.priorguide import PriorGuide
from reprior_bench.methods.priorguide_mc import PriorGuideMonteCarlo
from reprior_bench.methods.wsm import WeightedScoreMatching

__all__ = ["Analytic", "PriorGuide", "PriorGuideMonteCarlo", "WeightedScoreMatching"]

for _method in (PriorGuide, PriorGuideMonteCarlo, WeightedScoreMatching, Analytic):
    register(_method)
