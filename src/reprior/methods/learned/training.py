"""Training a learned ratio on weighted base samples.

Without the plug-in value, each training step draws fresh noise. The plug-in value needs denoised means, which are costly:
then a few copies of the training set get noise and denoised means once, and minibatches are drawn from these. The noise of
held-out rows never changes, so that their losses can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from reprior.diffusion.denoiser import features_of
from reprior.diffusion.sampler import ROWS, Sampler, chunked
from reprior.methods.auto import refusal
from reprior.methods.learned.model import RatioModel
from reprior.methods.learned.rows import NOISY_COPIES, Rows, add_noise, join, mean_over_parts, noisy_rows
from reprior.methods.learned.settings import RatioSettings
from reprior.methods.learned.training_set import TrainingSet, make_training_set
from reprior.methods.method import Problem
from reprior.methods.plug_in import plug_in_value
from reprior.methods.transport import Transported, largest_noise
from reprior.networks.fit import FitResult, fit
from reprior.observations import likely_x
from reprior.quadratic import Quadratic, expressible_part
from reprior.seeds import seeded
from reprior.weights import relative_ess

__all__ = ["Learned", "learn"]

FEWEST = 4.0  # effective draws per observation: with fewer, the weights can neither train nor judge a network
TRIAL = 8  # a trial run has 1 / TRIAL of the training steps: enough to rank two options
NEARLY = 0.98  # "choose" transports a part of log r if the weights of log r minus that part have this relative ESS
OBSERVATIONS, DRAWS = 16, 500  # stored observations, and base draws at each, on which this ESS is measured

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Learned:
    """What a training gave.

    Attributes:
        model: the trained ratio.
        transported: the part of log r that is transported, or None.
        result: what the training did.
        notes: figures of the training: relative ESS of the weights, held-out losses, seconds, observed entries of x.
    """

    model: RatioModel
    transported: Quadratic | None
    result: FitResult
    notes: dict[str, Any]


def learn(problem: Problem, loss: Loss, settings: RatioSettings, label: str) -> Learned:
    """Learns a(theta_t, x, t) = log q(theta_t, x)/p(theta_t, x).

    Arguments:
        problem: the base posterior, with its simulations, and the change of prior.
        loss: (a with shape (n,), r with shape (n,)) -> a scalar whose minimum over a is the log ratio.
        settings: the settings.
        label: what the progress bar says.
    """
    seed = problem.seed
    transported = _transported(problem, settings)
    data = make_training_set(problem, settings, seed, transported)
    wanted = settings.plug_in != "off" and problem.change.differentiable
    rows, value = _noisy(problem, data, settings, wanted, transported)
    options = {"on": (True,), "off": (False,), "choose": (True, False)}[settings.plug_in] if wanted else (False,)
    held_out, seconds, untrained = {}, 0.0, False
    if len(options) > 1 and data.draws and data.ess * data.draws < FEWEST:
        options, untrained = (True,), True
    if len(options) > 1:  # a short trial of each decides which is trained
        short = replace(settings, training=replace(settings.training, steps=max(1, settings.training.steps // TRIAL)))
        for on in options:
            _, tried = _fit(problem, data, rows, value, loss, short, on, label)
            held_out["plug_in" if on else "plain"] = tried.best_loss
            seconds += tried.seconds
        options = (held_out["plug_in"] < held_out["plain"],)
    model, result = _fit(problem, data, rows, value, loss, settings, options[0], label, not wanted, untrained)
    notes = {
        "training_ess": data.ess,
        "trials": held_out,
        "held_out": result.best_loss,
        "seconds": seconds + result.seconds,
        "observed": None if problem.observed is None else problem.observed.tolist(),
    }
    return Learned(model, transported, result, notes)


def _transported(problem: Problem, settings: RatioSettings) -> Quadratic | None:
    """The part of log r that is transported, if any."""
    if settings.on == "base" or settings.weights == "joint":
        return None
    part = expressible_part(problem.change, problem.posterior.base.noise)
    if settings.on == "transport" or _makes_all(problem):
        return part
    return part if _rest_ess(problem, part) > NEARLY else None


def _makes_all(problem: Problem) -> bool:
    """Whether one transport makes the whole change at typical observations; a mixture needs one for each component."""
    return len(problem.change.quadratics or []) == 1 and not refusal(problem)


def _rest_ess(problem: Problem, part: Quadratic) -> float:
    """The median relative ESS of the weights of log r minus a transported part, over typical observations."""
    posterior, change = problem.posterior, problem.change
    if posterior.simulations is None or largest_noise(part) < posterior.base.s_max:
        return 0.0
    generator = torch.Generator().manual_seed(problem.seed)
    x = likely_x(posterior.simulations, change, OBSERVATIONS, generator)
    draws = chunked(Transported(posterior.condition(x), part), DRAWS, Sampler(steps=16), generator)
    log_w = (change.log_w(draws) - part(draws)).cpu()
    return float(torch.tensor([relative_ess(log_w[:, k]) for k in range(len(x))]).median())


def _noisy(
    problem: Problem, data: TrainingSet, settings: RatioSettings, wanted: bool, transported: Quadratic | None
) -> tuple[Rows, Tensor]:
    """Noisy rows of a training set, and the plug-in value at each, with shape (n,); zeros where it is not wanted."""
    generator = torch.Generator().manual_seed(problem.seed + 1)
    copies = NOISY_COPIES if wanted else 1
    posterior = problem.posterior
    rows = join([noisy_rows(posterior, data, settings.time, wanted, generator, transported) for _ in range(copies)])
    value = torch.zeros(len(rows.z))
    if not wanted:
        return rows, value
    change = problem.change if transported is None else problem.change.minus(transported)
    where = data.index[rows.row]
    with torch.no_grad():
        for part in torch.arange(len(rows.z)).split(ROWS):
            k = where[part]
            found = plug_in_value(change, change.quadratic, rows.mean[part], rows.s[part], data.precision[k])
            value[part] = (found - data.log_z[k]).clamp(-30, 30).nan_to_num(nan=0.0)
    return rows, value


def _fit(
    problem: Problem,
    data: TrainingSet,
    rows: Rows,
    plug_in: Tensor,
    score: Loss,
    settings: RatioSettings,
    with_plug_in: bool,
    label: str,
    fresh: bool = False,
    untrained: bool = False,
) -> tuple[RatioModel, FitResult]:
    """Trains one network. ``fresh``: new noise in each step. ``untrained``: no training, which gives the plug-in value."""
    posterior, device = problem.posterior, problem.posterior.device
    features = features_of(posterior.base, data.x, ROWS)
    with seeded(problem.seed):
        model = RatioModel(data.theta.shape[1], features.shape[1], settings.network, with_plug_in).to(device)
    held_rows, _ = data.split(settings.training.validation)
    is_held = torch.zeros(len(data.theta), dtype=torch.bool)
    is_held[held_rows] = True
    held = is_held[rows.row].nonzero()[:, 0]
    kept = (~is_held[rows.row]).nonzero()[:, 0]
    weight = data.weight.clamp(max=float(data.weight.mean()) * 1e6)

    def value(module: nn.Module, some: Tensor, z: Tensor, s: Tensor) -> Tensor:
        row = rows.row[some]
        code = module.network.encode(features[data.index[row].to(device)])  # pyright: ignore
        return score(module(z.to(device), s.to(device), code, plug_in[some].to(device)), weight[row].to(device))

    def loss(module: nn.Module, i: Tensor, generator: Generator) -> Tensor:
        some = kept[i]
        if fresh:
            return value(module, some, *add_noise(data.theta[rows.row[some]], posterior, settings.time, generator))
        return value(module, some, rows.z[some], rows.s[some])

    def validate(module: nn.Module) -> float:
        return mean_over_parts(lambda part: value(module, part, rows.z[part], rows.s[part]), held)

    start = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        first = validate(model)
    if untrained:
        return model.requires_grad_(False), FitResult(0, 0, first, [], 0.0, "not trained")
    result = fit(
        model,
        loss,
        validate,
        len(kept),
        settings.training,
        problem.seed,
        label=label,
        progress=problem.progress,
    )
    if first < result.best_loss:  # with few effective draws the plug-in value alone can be better than the network
        model.load_state_dict(start)
        result = replace(result, best_step=0, best_loss=first)
    return model.requires_grad_(False), result
