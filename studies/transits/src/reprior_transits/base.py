"""The base model of the light curves: an amortized posterior p(theta | one window).

It is trained on simulated windows under the reference prior (`transit_prior.gaussian_prior`), with gaps cut into them as
real windows have, and serves every target whose windows have the same half-width; or, with a `Look`, every target whose
windows look so (`look`).

What the network sees of a window is `encode(x)`: two series of 128 numbers, eight summaries (`summaries`) and the profile of
the dip (`profile`). The series are

    y_j = arsinh((1 - x_j) / 0.001)    0 where the point is missing,
    m_j = 1 where the point is missing, else 0.

0.001 is the prior's mean noise, so y is linear in the noise and logarithmic in the depth: a radius ratio is known to a few
per cent whatever the depth, and arsinh gives each per cent the same size. A missing point is filled with the level out of
transit and flagged in the second series; as the network learns from windows with gaps, it learns to ignore the fill.

The prior has no limits, and 0.8 % of its draws are no star and planet (see `transit_prior`); they have no light curve and
are left out, so the base is trained on the prior within its limits. Inclinations above 90 degrees are mirror images: fold
posterior samples with `fold_inclination`.
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from reprior import priors
from reprior.errors import InputError
from reprior.loading import load
from reprior.networks.embedding import Embedding
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings
from reprior.networks.noise import NoiseLaw
from reprior.posterior import Posterior
from reprior.simulations import Simulations
from reprior.store import Store
from reprior.trainer import train
from reprior_transits.look import Look
from reprior_transits.profile import PROFILE, profile
from reprior_transits.summaries import SUMMARIES, summaries
from reprior_transits.transit import TransitSimulator, random_gaps
from reprior_transits.transit_prior import PARAMETERS, gaussian_prior

__all__ = ["BaseSettings", "encode", "get_base", "simulate_windows"]

FLUX_SCALE = 1e-3  # relative flux: the prior's mean noise of a point
DRAWS = 500_000  # of the prior at once, where only some of them are simulated
ROUNDS = 2_000  # of such draws, until a look is given up
LAW = NoiseLaw(log_mean=-1.6, log_std=1.6)  # lower noise levels than the default: these posteriors are narrow


@dataclass(frozen=True)
class BaseSettings:
    """Which base.

    Attributes:
        half_width: of the windows, in days.
        points: of a window.
        simulations: the number of simulated windows.
        steps: training steps.
        batch: windows per step.
        width: hidden width of the network.
        blocks: residual blocks of the network.
        features: the size of a window's embedding.
        seed: of the simulations and of the training.
        look: which simulated windows are kept; all of them if not given.
    """

    half_width: float = 0.5
    points: int = 128
    simulations: int = 300_000
    steps: int = 20_000
    batch: int = 256
    width: int = 128
    blocks: int = 3
    features: int = 48
    seed: int = 0
    look: Look | None = None

    def __post_init__(self) -> None:
        for name in ("simulations", "steps", "batch", "width", "blocks", "features"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.points % 16:
            raise InputError(f"points must be a multiple of 16, two patches; got {self.points}")

    @property
    def name(self) -> str:
        """The name of the base's file: base-0.5d, with what differs from the defaults."""
        plain = asdict(BaseSettings(self.half_width))
        tail = "".join(f"-{k}{v}" for k, v in asdict(self).items() if plain[k] != v and k != "look")
        like = f"-{self.look.name}" if self.look else ""
        return f"base-{self.half_width:g}d{tail}{like}"

    @property
    def simulator(self) -> TransitSimulator:
        """The simulator of such windows; unphysical draws give NaN."""
        return TransitSimulator(self.half_width, self.points, unphysical="nan")

    @property
    def network(self) -> MLPSettings:
        """The network's settings."""
        extra = len(SUMMARIES) + PROFILE
        patches = Embedding("patches", width=36, layers=2, features=self.features, item=8, channels=2, extra=extra)
        return MLPSettings("scalar", self.width, self.blocks, patches, guess="gaussian", law=LAW)

    @property
    def training(self) -> Training:
        """The training's settings."""
        every = max(1, self.steps // 16)
        return Training(self.steps, self.batch, validation=0.02, evaluate_every=every, patience=16)


def encode(x: Tensor) -> Tensor:
    """Windows as the network sees them; see the top of this file.

    Arguments:
        x: relative flux, NaN where missing, with shape (*, points).

    Returns: y, m, the summaries and the profile side by side, with shape (*, 2 points + 46).
    """
    missing = torch.isnan(x)
    y = torch.asinh((1 - x) / FLUX_SCALE).masked_fill(missing, 0.0)
    return torch.cat([y, missing.to(y), summaries(x), profile(x)], dim=-1)


def simulate_windows(settings: BaseSettings, n: int, seed: int, progress: bool = False) -> Simulations:
    """Encoded windows with gaps, and their parameters: about n, the unphysical draws left out.

    Arguments:
        settings: which base they are for.
        n: the number of draws; with a look, the number of windows that look so.
        seed: of the draws, the noise and the gaps.
        progress: show a progress bar.
    """
    prior = gaussian_prior()
    if settings.look is None:
        theta, x, dropped = _windows(settings, priors.sample(prior, n, seed), seed)
        return Simulations(theta, encode(x), prior, PARAMETERS, dropped=dropped)
    seeds = np.random.default_rng(seed)
    parts, kept, dropped = [], 0, 0
    with tqdm(total=n, desc="windows that look so", disable=not progress) as bar:
        for _ in range(ROUNDS):
            own = int(seeds.integers(2**40))
            theta = priors.sample(prior, DRAWS, own)
            theta = theta[settings.look.possible(theta)]
            if len(theta):
                theta, x, left_out = _windows(settings, theta, own)
                seen = settings.look.seen(x, settings.half_width)
                parts.append((theta[seen], encode(x[seen])))
                kept, dropped = kept + int(seen.sum()), dropped + left_out
                bar.update(int(seen.sum()))
            if kept >= n:
                break
        else:
            raise InputError(f"of {ROUNDS * DRAWS} draws of the prior only {kept} look like {settings.look}")
    theta, x = (torch.cat(part)[:n] for part in zip(*parts, strict=True))
    return Simulations(theta, x, prior, PARAMETERS, dropped=dropped)


def _windows(settings: BaseSettings, theta: Tensor, seed: int) -> tuple[Tensor, Tensor, int]:
    """The physical theta, their windows with gaps, and how many theta were not."""
    x = settings.simulator.simulate(theta, seed + 1)
    good = x.isfinite().all(1)
    x = x.masked_fill(random_gaps(len(x), settings.points, seed + 2), torch.nan)
    return theta[good], x[good], int((~good).sum())


def get_base(settings: BaseSettings, folder: str | Path, progress: bool = True) -> Posterior:
    """The base: read from the folder, or simulated, trained and written there (without its simulations).

    Arguments:
        settings: which base.
        folder: the base is kept there, and a training that was stopped goes on from there.
        progress: show progress bars.
    """
    path = Path(folder) / f"{settings.name}.safetensors"
    if path.exists():
        found = load(path)
        if not isinstance(found, Posterior):
            raise InputError(f"{path} holds no base posterior")
        return found
    work = path.with_suffix(".training")  # a folder: the simulated windows and the state of the training
    store, key = Store(work, "windows"), {"settings": settings}
    kept = store.get(key)
    if kept is None:
        made = simulate_windows(settings, settings.simulations, settings.seed, progress)
        kept = store.put(key, {"theta": made.theta, "x": made.x})
    with warnings.catch_warnings():
        if settings.look is not None:  # windows picked by x, which leaves p(theta | x) what it is
            warnings.filterwarnings("ignore", message=".*not distributed as under the prior")
        posterior = train(
            kept.tensors["theta"],
            kept.tensors["x"],
            gaussian_prior(),
            settings=settings.network,
            training=settings.training,
            seed=settings.seed,
            parameters=PARAMETERS,
            folder=work,
            progress=progress,
        )
    posterior.save(path, simulations=False)
    shutil.rmtree(work)
    return replace(posterior, simulations=None)
