"""Training a base posterior from simulations.

Few simulations, or x with many entries, must not give a posterior that is too narrow. One principle sees to it: whatever is
fitted is judged by simulations that it has not seen. The guess is a cross-validated regression, as wide as left-out rows lie
about it (`reprior.networks.ridge`); held-out rows choose among a few networks, and how much of the network's output counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from reprior import priors
from reprior.diffusion.denoiser import Base
from reprior.errors import InputError
from reprior.networks.build import build, default_settings
from reprior.networks.ensemble import MLPEnsemble
from reprior.networks.fit import FitResult, Training, fit
from reprior.networks.mlp import MLPBase, MLPSettings
from reprior.networks.simformer import SimformerSettings
from reprior.networks.sizing import sized_mlps, sized_training
from reprior.posterior import Posterior, Scales
from reprior.seeds import check_seed, seeded
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer
from reprior.training_checks import warn_of_columns, warn_of_fit, warn_of_tails

__all__ = ["train"]

VALIDATION_REPEATS = 4  # noise draws per held-out row, at least
AT_ONCE = 2_500  # held-out rows, at least: fewer are repeated, with other noise
MOST_HELD_OUT = 10_000  # rows: more would cost time and tell no more
TRIAL = 8  # where there are several candidates, each is tried with one step in so many
GUESS_SHARE = 4  # the guess gets at most one step in so many of the training


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
        x: their simulations, with shape (n, m); rows with NaN or inf are dropped and reported (for a Simformer, NaN
            means missing and is kept).
        prior: the prior p that theta was drawn from.
        network: "mlp" or "simformer".
        settings: the network's settings; if not given, what these simulations can carry (`reprior.networks.sizing`).
        training: the training settings; likewise.
        seed: the same seed gives the same posterior on the same machine.
        parameters: the names of the parameters.
        embedding: your own embedding module for x, (n, m) -> (n, e), with the MLP.
        max_bad_fraction: the fraction of rows with NaN or inf that is tolerated.
        device: where to train.
        folder: where the state of the run is kept; the same call goes on from it, after a kill, to the same posterior.
        progress: show the progress bar with the held-out loss and the time left.
        return_fit: also return the `FitResult`.

    Returns: the posterior, or (posterior, fit result).
    """
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller has switched off
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
        n, entries = simulations.x.shape
        candidates: tuple[Any, ...] = (chosen,)
        if settings is None and isinstance(chosen, MLPSettings):
            candidates = sized_mlps(n, entries, own_embedding=embedding is not None)
        run = training or (sized_training(n) if isinstance(chosen, MLPSettings) else Training())
        best = candidates[0]
        if len(candidates) > 1:  # a short training of each: held-out rows choose
            brief = replace(run, steps=max(1, run.steps // TRIAL), evaluate_every=max(1, run.steps // TRIAL))
            tried = []
            for one in candidates:
                base, rows = _start(simulations, scales, one, embedding, run, seed, device)
                tried.append(fit(base, rows.loss, rows.validate, len(rows.kept), brief, seed, progress=False).best_loss)
            best = candidates[tried.index(min(tried))]
        base, rows = _start(simulations, scales, best, embedding, run, seed, device)
        with torch.no_grad():
            untrained, alone = {k: v.clone() for k, v in base.state_dict().items()}, rows.validate(base.eval())
        result: FitResult = fit(
            base,
            rows.loss,
            rows.validate,
            len(rows.kept),
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
            factor, now = _trust(base, rows)
            result = replace(result, best_loss=now, alone=alone, factor=factor)
        else:
            result = replace(
                result, best_loss=min(result.best_loss, alone), alone=alone, factor=float(result.best_loss < alone)
            )
        warn_of_fit(result, base, n, entries)
        names = parameters or simulations.parameters
        posterior = Posterior(base.requires_grad_(False).eval(), scales, prior, simulations, tuple(names))
        return (posterior, result) if return_fit else posterior


def _start(
    simulations: Simulations,
    scales: Scales,
    settings: Any,
    embedding: nn.Module | None,
    run: Training,
    seed: int,
    device: str,
) -> tuple[Base, _Judged]:
    """A base with its guess fitted, before the training of its network, and the rows for that."""
    n, entries = simulations.x.shape
    with seeded(seed):
        base = build(simulations.theta.shape[1], entries, settings, embedding).to(device, torch.float32)
    held_out, kept = split_rows(n, run.validation, seed)
    if isinstance(base, MLPEnsemble):  # each member holds out rows of its own
        held_out = kept = torch.arange(n)
    theta, x = scales.theta.forward(simulations.theta).to(device), scales.x.forward(simulations.x).to(device)
    with seeded(seed):
        data = base.prepare(theta, x, max(1, run.steps // GUESS_SHARE), kept)
    return base, _Judged(data, kept, held_out, seed)


def split_rows(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Held-out and kept row indices."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    cut = min(max(1, round(fraction * n)), MOST_HELD_OUT)
    if n - cut < 1:
        raise InputError(f"{n} simulations are too few to hold out {fraction:.0%} for validation")
    return order[:cut], order[cut:]


@dataclass
class _Judged:
    """The rows of a base, some held out.

    Attributes:
        data: what `Base.prepare` returned, tensors of n rows.
        kept: the rows that are trained on.
        held_out: the rows that judge.
        seed: seeds the noise of the held-out loss, which is the same each time.
    """

    data: tuple[Tensor, ...]
    kept: Tensor
    held_out: Tensor
    seed: int

    def __post_init__(self) -> None:
        again = self.held_out.repeat(-(-AT_ONCE // len(self.held_out)))
        self.judges = tuple(t[again.to(t.device)] for t in self.data)

    def loss(self, module: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss of some of the kept rows."""
        rows = self.kept[rows].to(self.data[0].device)
        return module.loss_of(tuple(t[rows] for t in self.data), generator).mean()  # pyright: ignore[reportCallIssue]

    def validate(self, module: nn.Module) -> float:
        """The mean loss of the held-out rows."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        draws = [module.loss_of(self.judges, generator).mean() for _ in range(VALIDATION_REPEATS)]  # pyright: ignore[reportCallIssue]
        return float(torch.stack(draws).mean())

    def of_rows(self, values: Tensor) -> Tensor:
        """The mean over noise and parameters, for each held-out row, of values of the judges."""
        return values.mean(-1).reshape(-1, len(self.held_out)).mean(0) / VALIDATION_REPEATS


@torch.no_grad()
def _trust(base: MLPBase | MLPEnsemble, rows: _Judged) -> tuple[float, float]:
    """Takes as much of the network's output as the held-out rows say; none if they do not say clearly that it helps.

    With F the output and T its target, the loss |factor F - T|^2 is smallest at factor = F.T / F.F, and at 0 it is that of
    the guess alone.

    Returns: the factor, from 0 to 1, and the loss with it.
    """
    generator = torch.Generator().manual_seed(rows.seed + 1)
    both = square = total = torch.zeros((), dtype=torch.float64)
    for _ in range(VALIDATION_REPEATS):
        f, target = (v.double().cpu() for v in base.answers(rows.judges, generator))
        both, square = both + rows.of_rows(f * target), square + rows.of_rows(f.square())
        total = total + rows.of_rows(target.square())
    factor = float((both.mean() / square.mean().clamp(min=1e-12)).clamp(0, 1))
    gain = 2 * factor * both - factor**2 * square  # of each row
    clear = len(gain) == 1 or float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5
    factor = factor if clear and float(gain.mean()) > 0 else 0.0
    base.trust(factor)
    return factor, float((total - (gain if factor else 0.0)).mean())
