"""How large a network, and how long a training, the simulations can carry: the defaults of `train`."""

from __future__ import annotations

from reprior.networks.embedding import Embedding
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings

__all__ = ["sized_mlp", "sized_training"]

FEW = 5_000  # simulations below which all of them are trained on, and all judge, in folds
FOLDS = 4
ROWS_PER_ENTRY = 20  # fewer simulations than so many for each entry of x: the network reads a summary of it
MOST_AXES = 64


def sized_mlp(n: int, x_dim: int) -> MLPSettings:
    """The settings of an MLP for n simulations with x of so many entries."""
    axes = 0 if n >= ROWS_PER_ENTRY * x_dim else min(x_dim, MOST_AXES, max(3, n // ROWS_PER_ENTRY))
    if n >= FEW:
        return MLPSettings(axes=axes)
    blur = ((axes or x_dim) / n) ** 0.25
    return MLPSettings(
        width=64, blocks=2, embedding=Embedding(width=64, features=32), axes=axes, blur=blur, members=FOLDS
    )


def sized_training(n: int) -> Training:
    """The settings of a training on n simulations."""
    if n >= FEW:
        return Training()
    return Training(
        steps=2_000, batch=256, learning_rate=1e-3, ema=0.99, weight_decay=0.01, evaluate_every=100, patience=6
    )
