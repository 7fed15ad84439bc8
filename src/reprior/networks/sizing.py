"""How large a network, and how long a training, the simulations can carry: the defaults of `train`.

Few simulations (fewer than 10,000) are trained on in folds, by small networks whose mean is taken, so that all of them train and all
of them judge. Where simulations are few for the entries of x, a network that reads x learns it by heart, and one that reads
a summary of it (principal components and a regression) may miss what the summary leaves out: both are candidates, between
which held-out simulations choose.
"""

from __future__ import annotations

from dataclasses import replace

from reprior.networks.embedding import Embedding
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings

__all__ = ["sized_mlps", "sized_training"]

FEW = 10_000  # simulations below which they are cut in folds
VERY_FEW = 2_000  # below which the networks are the smallest
FOLDS = 4
AMPLE = 20  # simulations for each entry of x, from which on the network reads x itself
MOST_AXES = 64
FEWEST_STEPS, MOST_STEPS = 2_000, 4_000  # with few simulations
JUDGES = 1_000  # simulations that are held out at least


def sized_mlps(n: int, x_dim: int, own_embedding: bool = False) -> tuple[MLPSettings, ...]:
    """Settings of an MLP, among which held-out simulations choose.

    Arguments:
        n: the number of simulations.
        x_dim: the number m of entries of x.
        own_embedding: whether a module of the user's reads x.
    """
    plain = MLPSettings()
    if n < FEW:
        width, blocks = (64, 2) if n < VERY_FEW else (96, 3)
        plain = MLPSettings(width=width, blocks=blocks, embedding=Embedding(width=64, features=32), members=FOLDS)
    if own_embedding or n >= AMPLE * x_dim:
        return (plain,)
    summary = replace(plain, axes=min(x_dim, MOST_AXES, max(3, n // AMPLE)))
    return (summary,) if x_dim >= n else (summary, plain)


def sized_training(n: int) -> Training:
    """The settings of a training on n simulations."""
    if n >= FEW:
        return Training(validation=max(0.05, JUDGES / n))
    steps = min(max(FEWEST_STEPS, n), MOST_STEPS)
    return Training(
        steps=steps,
        batch=256,
        learning_rate=1e-3,
        weight_decay=0.01,
        ema=0.99,
        validation=0.2,
        evaluate_every=steps // 20,
        patience=5,
    )
