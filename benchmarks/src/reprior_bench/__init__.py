"""The benchmark of reprior: tasks with exact posteriors, competing methods, and the measurements behind the docs.

Importing the package registers its methods (`reprior_bench.methods`) with the library, as any other package would.
"""

from __future__ import annotations

__all__ = ["DEVELOPMENT_SEED", "EVALUATION_SEED"]

EVALUATION_SEED = 50_000  # of the observations that results are judged by; the figures of version 0.1.0 have 20_000
DEVELOPMENT_SEED = 30_000  # of the observations that settings may be tuned on
