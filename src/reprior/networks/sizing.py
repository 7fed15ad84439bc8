"""The defaults of `train`: size of the network and length of the training, from the number of simulations.

Few simulations get a small network, a short training and an ensemble trained in folds. An x with many entries per
simulation is replaced by a summary of it.
"""

from __future__ import annotations

from reprior.networks.embedding import Embedding
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings

__all__ = ["sized_mlp", "sized_training"]

FEW = 5_000  # simulations: below this a held-out set would be too small, and an ensemble is trained in folds
FOLDS = 4  # members of that ensemble: each trains on three quarters of the simulations
ROWS_PER_ENTRY = 20  # simulations per entry of x: with fewer, the network reads principal components in place of x
MOST_AXES = 64  # principal components: more would make the input as wide as the network


def sized_mlp(n: int, x_dim: int) -> MLPSettings:
    """The settings of an MLP for n simulations.

    Arguments:
        n: the number of simulations.
        x_dim: the number m of entries of x.
    """
    axes = 0 if n >= ROWS_PER_ENTRY * x_dim else min(x_dim, MOST_AXES, max(3, n // ROWS_PER_ENTRY))
    if n >= FEW:
        return MLPSettings(axes=axes)
    blur = ((axes or x_dim) / n) ** 0.25
    return MLPSettings(
        width=64, blocks=2, embedding=Embedding(width=64, features=32), axes=axes, blur=blur, members=FOLDS
    )


def sized_training(n: int) -> Training:
    """The settings of the training of an MLP on n simulations."""
    if n >= FEW:
        return Training()
    return Training(
        steps=2_000, batch=256, learning_rate=1e-3, ema=0.99, weight_decay=0.01, evaluate_every=100, patience=6
    )
