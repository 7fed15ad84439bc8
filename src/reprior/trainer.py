"""Training a base posterior from simulations.

Few simulations, or x with many entries, must not give a posterior that is too narrow. Therefore every fit is judged by
simulations that it has not seen. The guess is a cross-validated regression, and its width is the residual of left-out rows
(`reprior.networks.ridge`). The network's output is scaled by the factor with the smallest loss on held-out rows, and not
used at all where they do not clearly show that it helps.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from reprior import priors
from reprior.errors import InputError
from reprior.networks.build import build, default_settings
from reprior.networks.ensemble import MLPEnsemble
from reprior.networks.fit import FitResult, Training, fit
from reprior.networks.mlp import MLPBase, MLPSettings
from reprior.networks.simformer import SimformerSettings
from reprior.networks.sizing import sized_mlp, sized_training
from reprior.posterior import Posterior, Scales
from reprior.seeds import check_seed, seeded
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer
from reprior.training_checks import warn_of_columns, warn_of_fit, warn_of_tails

__all__ = ["train"]

VALIDATION_REPEATS = 4  # noise draws per held-out row, at least: without them the noise would dominate the loss
AT_ONCE = 2_500  # rows in a held-out loss, at least: a smaller held-out set is repeated with other noise
MOST_HELD_OUT = 10_000  # rows held out: more would cost time, and the loss is accurate enough
GUESS_SHARE = 4  # the guess gets at most 1 / GUESS_SHARE as many steps as the training of the base


@overload
def train(
    theta: Tensor,
    x: Tensor,
    prior: Any,
    network: str = ...,
    settings: MLPSettings | SimformerSettings | None = ...,
    training: Training | None = ...,
    seed: int = ...,
    parameters: tuple[str, ...] | None = ...,
    embedding: nn.Module | None = ...,
    max_bad_fraction: float = ...,
    device: str = ...,
    folder: str | Path | None = ...,
    progress: bool = ...,
    return_fit: Literal[False] = ...,
) -> Posterior: ...
@overload
def train(
    theta: Tensor,
    x: Tensor,
    prior: Any,
    network: str = ...,
    settings: MLPSettings | SimformerSettings | None = ...,
    training: Training | None = ...,
    seed: int = ...,
    parameters: tuple[str, ...] | None = ...,
    embedding: nn.Module | None = ...,
    max_bad_fraction: float = ...,
    device: str = ...,
    folder: str | Path | None = ...,
    progress: bool = ...,
    *,
    return_fit: Literal[True],
) -> tuple[Posterior, FitResult]: ...
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
) -> Posterior | tuple[Posterior, FitResult]:
    """Trains an amortized posterior p(theta | x).

    Arguments:
        theta: parameters drawn from the prior, with shape (n, d).
        x: their simulations, with shape (n, m); rows with NaN or inf are dropped with a warning (for a Simformer, NaN
            means missing and is kept).
        prior: the prior p that theta was drawn from.
        network: "mlp" or "simformer".
        settings: the network's settings; if not given, chosen by the number of simulations and of entries of x
            (`reprior.networks.sizing`).
        training: the training settings; if not given, chosen in the same way.
        seed: the same seed gives the same posterior on the same machine.
        parameters: the names of the parameters.
        embedding: your own embedding module for x, (n, m) -> (n, e), with the MLP.
        max_bad_fraction: the fraction of rows with NaN or inf that is tolerated.
        device: where to train.
        folder: where the state of the run is kept; after a kill the same call resumes it and gives the same posterior.
        progress: show the progress bar with the held-out loss and the time left.
        return_fit: also return the `FitResult`.

    Returns: the posterior, or (posterior, fit result).
    """
    with torch.inference_mode(False), torch.enable_grad():  # the caller may have switched gradients off
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
            "selected by their x are fine)"
        )
        warn_of_tails(simulations)
        warn_of_columns(simulations.x)
        dim = simulations.theta.shape[1]
        if priors.dim_of(prior) != dim:
            raise InputError(f"the prior has {priors.dim_of(prior)} parameters but theta has {dim}")
        alike = isinstance(chosen, MLPSettings) and embedding is None and chosen.embedding.compares
        scales = Scales(
            Standardizer.fit(simulations.theta, robust=False),
            Standardizer.fit(simulations.x, robust=True, compress=True, pooled=alike),
        )
        n = len(simulations)
        if settings is None and isinstance(chosen, MLPSettings) and embedding is None:
            chosen = sized_mlp(n, simulations.x.shape[1])
        run = training or (sized_training(n) if isinstance(chosen, MLPSettings) else Training())
        with seeded(seed):
            base = build(dim, simulations.x.shape[1], chosen, embedding).to(device, torch.float32)
        folds = isinstance(base, MLPEnsemble)  # each member has held-out rows of its own
        held_out, kept = split_rows(n, run.validation, seed)
        if folds:
            held_out = kept = torch.arange(n)
        theta_s, x_s = (
            scales.theta.forward(simulations.theta).to(device),
            scales.x.forward(simulations.x).to(device),
        )
        with seeded(seed):
            prepared = base.prepare(theta_s, x_s, max(1, run.steps // GUESS_SHARE), kept)
        del theta_s, x_s
        judging = held_out.repeat(-(-AT_ONCE // len(held_out)))
        judges = tuple(t[judging] for t in prepared)

        def loss(module: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
            rows = kept[rows].to(prepared[0].device)
            return module.loss_of(tuple(t[rows] for t in prepared), generator).mean()  # pyright: ignore[reportCallIssue]

        def validate(module: nn.Module) -> float:
            generator = torch.Generator().manual_seed(seed + 1)
            draws = [module.loss_of(judges, generator).mean() for _ in range(VALIDATION_REPEATS)]  # pyright: ignore[reportCallIssue]
            return float(torch.stack(draws).mean())

        with torch.no_grad():
            untrained, alone = {k: v.clone() for k, v in base.state_dict().items()}, validate(base.eval())
        result: FitResult = fit(
            base,
            loss,
            validate,
            len(kept),
            run,
            seed,
            label=f"train {base.config()['network']}",
            progress=progress,
            folder=folder,
            key={"base": base.config(), "theta": simulations.theta, "x": simulations.x},
        )
        if not result.best_loss < alone:
            base.load_state_dict(untrained)
        if isinstance(base, (MLPBase, MLPEnsemble)):
            share, now = _trust(base, judges, len(held_out), seed + 1)
            result = replace(result, best_loss=now, alone=alone, share=share)
        else:
            result = replace(
                result, best_loss=min(result.best_loss, alone), alone=alone, share=float(result.best_loss < alone)
            )
        warn_of_fit(result, base, n, simulations.x.shape[1])
        names = parameters or simulations.parameters
        posterior = Posterior(base.requires_grad_(False).eval(), scales, prior, simulations, tuple(names))
        return (posterior, result) if return_fit else posterior


def split_rows(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Held-out and kept row indices."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    cut = min(max(1, round(fraction * n)), MOST_HELD_OUT)
    if n - cut < 1:
        raise InputError(f"{n} simulations are too few to hold out {fraction:.0%} for validation")
    return order[:cut], order[cut:]


@torch.no_grad()
def _trust(base: MLPBase | MLPEnsemble, judges: tuple[Tensor, ...], rows: int, seed: int) -> tuple[float, float]:
    """Scales the network's output by the factor with the smallest held-out loss.

    With F the output and T its target, the loss |share F - T|^2 is smallest at share = F.T / F.F; at share = 0 it is that of
    the guess alone. The factor is set to 0 if the gain over the guess is below its standard error.

    Arguments:
        base: the network; its output is scaled in place.
        judges: held-out rows, repeated where they are few.
        rows: their number without repeats.
        seed: seeds the noise.

    Returns: the factor, from 0 to 1, and the loss with it.
    """
    generator = torch.Generator().manual_seed(seed)
    both = square = total = torch.zeros((), dtype=torch.float64)
    for _ in range(VALIDATION_REPEATS):
        f, target = (v.double() for v in base.answers(judges, generator))
        both = both + _of_rows(f * target, rows)
        square = square + _of_rows(f.square(), rows)
        total = total + _of_rows(target.square(), rows)
    share = float((both.mean() / square.mean().clamp(min=1e-12)).clamp(0, 1))
    gain = 2 * share * both - share**2 * square  # of each row
    clear = len(gain) == 1 or float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5
    share = share if clear and float(gain.mean()) > 0 else 0.0
    base.trust(share)
    return share, float((total - (gain if share else 0.0)).mean())


def _of_rows(values: Tensor, rows: int) -> Tensor:
    """The mean of values, with shape (repeats rows, d), over parameters and repeats, over VALIDATION_REPEATS: shape (rows,)."""
    return values.mean(-1).reshape(-1, rows).mean(0) / VALIDATION_REPEATS
