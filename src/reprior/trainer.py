"""Training a base posterior from simulations."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reprior import priors
from reprior.errors import InputError
from reprior.networks.build import build, default_settings
from reprior.networks.fit import FitResult, Training, fit
from reprior.networks.mlp import MLPSettings
from reprior.networks.simformer import SimformerSettings
from reprior.posterior import Posterior, Scales
from reprior.seeds import check_seed, seeded
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

__all__ = ["train"]

VALIDATION_REPEATS = 4  # noise draws per held-out row
HEAVY = 5.0  # standard deviations, in halves of the central two thirds, that only heavy tails have
RESOLVED = 0.01  # standard deviations below which a posterior is near the lowest noise
GUESS_SHARE = 4  # the guess gets at most one step in so many of the training


def train(
    theta: Tensor,
    x: Tensor,
    prior: Any,
    network: str = "mlp",
    settings: MLPSettings | SimformerSettings | None = None,
    training: Training | None = None,
    seed: int = 0,
    parameters: tuple[str, ...] | None = None,
    embedding: nn.Module | None = None,
    max_bad_fraction: float = 0.1,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool = True,
    return_fit: bool = False,
) -> Any:
    """Trains an amortized posterior p(theta | x).

    Arguments:
        theta: parameters drawn from the prior, with shape (n, d).
        x: their simulations, with shape (n, m); rows with NaN or inf are dropped and reported (for a Simformer, NaN
            means missing and is kept).
        prior: the prior p that theta was drawn from.
        network: "mlp" or "simformer".
        settings: the network's settings; its defaults if not given.
        training: the training settings; the network's defaults if not given.
        seed: the same seed gives the same posterior on the same machine.
        parameters: the names of the parameters.
        embedding: your own embedding module for x, (n, m) -> (n, e), with the MLP.
        max_bad_fraction: the share of rows with NaN or inf that is tolerated.
        device: where to train.
        folder: where the state of the run is kept; the same call goes on from it, after a kill, to the same posterior.
        progress: show the progress bar with the held-out loss and the time left.
        return_fit: also return the `FitResult`.

    Returns: the posterior, or (posterior, fit result).
    """
    seed = check_seed(seed)
    prior = priors.on_cpu(priors.as_prior(prior))
    chosen = default_settings(network) if settings is None else settings
    if not isinstance(chosen, type(default_settings(network))):
        raise InputError(
            f"network {network!r} takes {type(default_settings(network)).__name__}; settings is {type(chosen).__name__}"
        )
    missing = "keep" if isinstance(chosen, SimformerSettings) else "drop"
    simulations = Simulations.create(theta, x, prior, parameters, max_bad_fraction, missing)
    simulations.warn_if_not_drawn(
        "Pass the prior that theta was drawn from: a wrong one makes every change of prior wrong (simulations that were "
        "picked by their x are fine)"
    )
    _warn_of_tails(simulations)
    dim = simulations.theta.shape[1]
    if priors.dim_of(prior) != dim:
        raise InputError(f"the prior has {priors.dim_of(prior)} parameters but theta has {dim}")
    alike = isinstance(chosen, MLPSettings) and embedding is None and chosen.embedding.compares
    scales = Scales(
        Standardizer.fit(simulations.theta, robust=False),
        Standardizer.fit(simulations.x, robust=True, compress=True, pooled=alike),
    )
    run = training or Training()
    with seeded(seed):
        base = build(dim, simulations.x.shape[1], chosen, embedding).to(device, torch.float32)
    held_out, kept = split_rows(len(simulations), run.validation, seed)
    theta_s, x_s = (
        scales.theta.forward(simulations.theta).to(device),
        scales.x.forward(simulations.x).to(device),
    )
    with seeded(seed):
        base.prepare(theta_s[kept], x_s[kept], max(1, run.steps // GUESS_SHARE))
    theta_v, x_v = theta_s[held_out], x_s[held_out]
    theta_t, x_t = theta_s[kept], x_s[kept]

    def loss(module: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        rows = rows.to(theta_t.device)
        return module.loss(theta_t[rows], x_t[rows], generator).mean()  # pyright: ignore[reportCallIssue]

    def validate(module: nn.Module) -> float:
        generator = torch.Generator().manual_seed(seed + 1)
        draws = [module.loss(theta_v, x_v, generator).mean() for _ in range(VALIDATION_REPEATS)]  # pyright: ignore[reportCallIssue]
        return float(torch.stack(draws).mean())

    result: FitResult = fit(
        base,
        loss,
        validate,
        len(theta_t),
        run,
        seed,
        label=f"train {base.config()['network']}",
        progress=progress,
        folder=folder,
        key={"base": base.config(), "theta": simulations.theta, "x": simulations.x},
    )
    names = parameters or simulations.parameters
    posterior = Posterior(base.requires_grad_(False).eval(), scales, prior, simulations, tuple(names))
    return (posterior, result) if return_fit else posterior


def split_rows(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Held-out and kept row indices."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    cut = max(1, round(fraction * n))
    if n - cut < 1:
        raise InputError(f"{n} simulations are too few to hold out {fraction:.0%} for validation")
    return order[:cut], order[cut:]


def _warn_of_tails(simulations: Simulations) -> None:
    """Warns of a parameter whose spread a few far draws make: the noise that a base learns goes with that spread."""
    spread, most = Standardizer.fit(simulations.theta).scale, Standardizer.fit(simulations.theta, robust=True).scale
    for name, wide, narrow in zip(simulations.parameters, spread.tolist(), most.tolist(), strict=True):
        if wide > HEAVY * narrow:
            warnings.warn(
                f"{name} has heavy tails: its standard deviation is {wide:.3g}, but two thirds of the simulations lie within "
                f"{narrow:.3g} of the middle, and posteriors narrower than {RESOLVED * wide:.2g} will come out too wide. Train on "
                "its logarithm, or another transform of it (with the prior of that)",
                stacklevel=3,
            )
            return
