"""Learned density ratios: losses, training set, training and the methods that use them."""

from __future__ import annotations

from reprior.methods.learned.losses import ESTIMATORS
from reprior.methods.learned.ratio import KLIEP, NRE, Hellinger, LearnedRatio, Pearson, ReverseKL
from reprior.methods.learned.settings import BEST, PAPER, RatioSettings

__all__ = [
    "BEST",
    "ESTIMATORS",
    "KLIEP",
    "NRE",
    "PAPER",
    "Hellinger",
    "LearnedRatio",
    "Pearson",
    "RatioSettings",
    "ReverseKL",
]
