"""Training a learned guidance on a pool of weighted base samples.

A network alone sees fresh noise in each step. Where denoised means are needed (by the anchor, and by weighted score
matching), each of `NOISY_COPIES` copies of the pool gets its own noise and its means, computed once, and minibatches are
drawn from these. The noise of held-out rows is fixed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from reprior.change import PriorChange
from reprior.diffusion.denoiser import features_of
from reprior.diffusion.sampler import ROWS
from reprior.diffusion.schedule import VP
from reprior.networks.fit import FitResult, fit
from reprior.methods.plug_in import anchor_value
from reprior.methods.auto import left_by_transport, transport_refused
from reprior.methods.learned.guidance import DensityRatioGuidance, RatioModel, RatioSettings
from reprior.quadratic import Quadratic, expressible_part, find_quadratic
from reprior.posterior import Posterior
from reprior.methods.learned.draws import bound
from reprior.methods.learned.losses import loss_of
from reprior.methods.learned.pool import Pool, joint_pool, posterior_pool

__all__ = ["Rows", "learn_ratio", "make_pool", "mean_over_parts", "noisy_rows"]

NOISY_COPIES = 4
AT_ONCE = 20_000  # held-out rows that are judged at once
FEWEST = 4.0  # effective draws per observation, below which the anchor is used as it is
TRIAL = 8  # a trial takes one step in so many
NEARLY = 0.98  # transport takes over what it can where that leaves at least this ESS/N
LOG_MEAN, LOG_STD = -0.7, 1.5  # of log s, with time="log"


@dataclass(frozen=True)
class Rows:
    """Noisy rows of a pool.

    Attributes:
        z: noisy parameters, with shape (n, D).
        s: noise levels, with shape (n, 1).
        mean: the base's denoised means there, with shape (n, D); zeros if they were not asked for.
        row: the row of the pool, with shape (n,).
    """

    z: Tensor
    s: Tensor
    mean: Tensor
    row: Tensor


def make_pool(
    posterior: Posterior,
    change: PriorChange,
    settings: RatioSettings,
    seed: int,
    observed: Tensor | None,
    under: Quadratic | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Pool:
    """The training set that the settings ask for."""
    generator = torch.Generator().manual_seed(seed)
    common = (posterior, change, settings.observations, settings.draws, settings.sampler, generator, observed)
    if settings.weights == "joint":
        return joint_pool(*common, cache)
    return posterior_pool(*common, under, cache)


def draw_noise(n: int, time: str, s_min: float, s_max: float, generator: Generator) -> Tensor:
    """Noise levels for n rows, with shape (n, 1)."""
    if time == "vp":
        vp = VP()
        t = vp.t_min + torch.rand(n, 1, generator=generator, dtype=torch.float64) * (vp.t_max - vp.t_min)
        return vp.s(t).float()
    return (LOG_MEAN + LOG_STD * torch.randn(n, 1, generator=generator)).exp().clamp(s_min, s_max)


def add_noise(theta: Tensor, posterior: Posterior, time: str, generator: Generator) -> tuple[Tensor, Tensor]:
    """Noisy parameters z, with shape (n, D), and their noise levels, with shape (n, 1), from theta_0, (n, D)."""
    s = draw_noise(len(theta), time, posterior.base.s_min, posterior.base.s_max, generator)
    return theta + s * torch.randn(theta.shape, generator=generator), s


@torch.no_grad()
def noisy_rows(
    posterior: Posterior, pool: Pool, time: str, means: bool, generator: Generator, under: Quadratic | None = None
) -> Rows:
    """One noisy copy of every row of a pool."""
    z, s = add_noise(pool.theta, posterior, time, generator)
    row = torch.arange(len(z))
    mean = torch.zeros_like(z)
    if means:
        mean = _means(posterior, pool, z, s, under)
    return Rows(z, s, mean, row)


def _means(posterior: Posterior, pool: Pool, z: Tensor, s: Tensor, under: Quadratic | None) -> Tensor:
    predict, device = z.shape[1] > posterior.dim, posterior.device
    out = torch.empty_like(z)
    if pool.draws:  # the same number of draws at each observation: encode each observation once
        block = max(1, ROWS // pool.draws)
        for i in range(0, len(pool.x), block):
            x = pool.x[i : i + block]
            rows = slice(i * pool.draws, (i + len(x)) * pool.draws)
            shape = (len(x), pool.draws, -1)
            z_k, s_k = (v[rows].reshape(shape).transpose(0, 1).to(device) for v in (z, s))
            mean = bound(posterior, x, predict, under).mean(z_k, s_k)
            out[rows] = mean.transpose(0, 1).reshape(-1, z.shape[1]).cpu()
        return out
    for part in torch.arange(len(z)).split(ROWS):
        denoiser = bound(posterior, pool.x[pool.index[part]], predict, under)
        out[part] = denoiser.mean(z[part].to(device), s[part].to(device)).cpu()
    return out


def mean_over_parts(value: Callable[[Tensor], Tensor], rows: Tensor) -> float:
    """The mean of a loss over many rows, a part of them at a time; each part counts by its size.

    Arguments:
        value: the mean loss of some rows, given their indices.
        rows: the indices of all, with shape (n,).
    """
    return sum(float(value(part)) * len(part) for part in rows.split(AT_ONCE)) / len(rows)


def join(copies: list[Rows]) -> Rows:
    """Several noisy copies as one set of rows."""
    return Rows(*(torch.cat([getattr(c, name) for c in copies]) for name in ("z", "s", "mean", "row")))


def learn_ratio(
    posterior: Posterior,
    change: PriorChange,
    estimator: str,
    settings: RatioSettings,
    seed: int,
    progress: bool = True,
    observed: Tensor | None = None,
    pool: Pool | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> DensityRatioGuidance:
    """Learns a(theta_t, x, t) = log q(theta_t, x)/p(theta_t, x) and gives the guidance.

    Arguments:
        posterior: the base posterior, with its simulations.
        change: the change of prior.
        estimator: nre, kliep, pearson, reverse_kl or hellinger.
        settings: the settings.
        seed: the same seed gives the same guidance on the same machine.
        progress: show the progress bar.
        observed: which entries of x are observed, with shape (m,); the rest is predicted. All if None.
        pool: a training set made before with the same settings.
        cache: the folder where base draws are kept (`reprior.methods.learned.draws`), or None.
    """
    under = _taken_over(posterior, change, settings, seed, observed)
    pool = make_pool(posterior, change, settings, seed, observed, under, cache) if pool is None else pool
    rest = change if under is None else change.without(under)
    generator = torch.Generator().manual_seed(seed + 1)
    wants_anchor = settings.anchor != "off" and change.differentiable
    copies = NOISY_COPIES if wants_anchor else 1
    rows = join([noisy_rows(posterior, pool, settings.time, wants_anchor, generator, under) for _ in range(copies)])
    anchor = torch.zeros(len(rows.z))
    if wants_anchor:
        quadratic = find_quadratic(rest)
        where = pool.index[rows.row]
        with torch.no_grad():
            for part in torch.arange(len(rows.z)).split(ROWS):
                k = where[part]
                value = anchor_value(rest, quadratic, rows.mean[part], rows.s[part], pool.precision[k])
                anchor[part] = (value - pool.log_z[k]).clamp(-30, 30).nan_to_num(nan=0.0)
    options = {"on": (True,), "off": (False,), "choose": (True, False)}[settings.anchor]
    if not wants_anchor:
        options = (False,)
    held_out, seconds, as_it_is = {}, 0.0, False
    if len(options) > 1 and pool.draws and pool.ess * pool.draws < FEWEST:
        # So few draws carry the weights that their own normalisation is off: they can neither teach nor judge.
        options, as_it_is = (True,), True
    if len(options) > 1:  # a short trial of each decides which is trained
        short = replace(settings, training=replace(settings.training, steps=max(1, settings.training.steps // TRIAL)))
        for on in options:
            _, tried = _fit_one(posterior, pool, rows, anchor, estimator, short, seed, on, progress)
            held_out["anchor" if on else "plain"] = tried.best_loss
            seconds += tried.seconds
        options = (held_out["anchor"] < held_out["plain"],)
    common = (posterior, pool, rows, anchor, estimator, settings, seed, options[0], progress)
    model, result = _fit_one(*common, fresh=not wants_anchor, as_it_is=as_it_is)
    notes = {
        "training_ess": pool.ess,
        "anchored": model.anchored,
        "trials": held_out,
        "held_out": result.best_loss,
        "seconds": seconds + result.seconds,
        "observed": None if observed is None else observed.tolist(),
    }
    return DensityRatioGuidance(estimator, model, posterior, change, settings, result, notes, under)


def _taken_over(
    posterior: Posterior, change: PriorChange, settings: RatioSettings, seed: int, observed: Tensor | None
) -> Quadratic | None:
    """The part of log r that transport takes over, if any."""
    if settings.under == "base" or settings.weights == "joint":
        return None
    part = expressible_part(change, posterior.base.noise)
    if settings.under == "transport" or not transport_refused(posterior, change, seed, observed):
        return part
    return part if left_by_transport(posterior, change, part, seed) > NEARLY else None


def _fit_one(
    posterior: Posterior,
    pool: Pool,
    rows: Rows,
    anchor: Tensor,
    estimator: str,
    settings: RatioSettings,
    seed: int,
    anchored: bool,
    progress: bool,
    fresh: bool = False,
    as_it_is: bool = False,
) -> tuple[RatioModel, FitResult]:
    device = posterior.device
    features = features_of(posterior.base, pool.x, ROWS)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = RatioModel(pool.theta.shape[1], features.shape[1], settings.network, anchored).to(device)
    held_rows, _ = pool.split(settings.training.validation)
    is_held = torch.zeros(len(pool.theta), dtype=torch.bool)
    is_held[held_rows] = True
    held = is_held[rows.row].nonzero()[:, 0]
    kept = (~is_held[rows.row]).nonzero()[:, 0]
    score = loss_of(estimator)
    weight = pool.weight.clamp(max=float(pool.weight.mean()) * 1e6)

    def value(module: nn.Module, some: Tensor, z: Tensor, s: Tensor) -> Tensor:
        row = rows.row[some]
        code = module.network.encode(features[pool.index[row].to(device)])  # pyright: ignore
        return score(module(z.to(device), s.to(device), code, anchor[some].to(device)), weight[row].to(device))

    def loss(module: nn.Module, i: Tensor, generator: Generator) -> Tensor:
        some = kept[i]
        if fresh:
            return value(module, some, *add_noise(pool.theta[rows.row[some]], posterior, settings.time, generator))
        return value(module, some, rows.z[some], rows.s[some])

    def validate(module: nn.Module) -> float:
        return mean_over_parts(lambda part: value(module, part, rows.z[part], rows.s[part]), held)

    start = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        untrained = validate(model)
    if as_it_is:
        return model.requires_grad_(False), FitResult(0, 0, untrained, [], 0.0, "not trained")
    result = fit(
        model,
        loss,
        validate,
        len(kept),
        settings.training,
        seed,
        label=f"{estimator} ratio" + (" with anchor" if anchored else ""),
        progress=progress,
    )
    if untrained < result.best_loss:  # the anchor alone is better than what few weighted draws can teach
        model.load_state_dict(start)
        result = replace(result, best_step=0, best_loss=untrained)
    return model.requires_grad_(False), result
