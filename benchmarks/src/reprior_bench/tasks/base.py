"""What every benchmark task offers: a simulator, two pairs of priors and a reference posterior.

A task is p(x | theta) with a training prior p(theta) and a target prior q(theta), in two regimes: ``id`` (q
lies within p) and ``ood`` (q reaches where p has little mass). The reference draws from

    prior(theta) p(x | theta) / normaliser

for ANY prior: one of the task's own, or a torch Distribution. What "reference" means for a task is in
``Task.reference_kind``. A task also names the networks that its bases are trained with, so that all that the
benchmark knows of a task stands in its file.

Public methods validate and convert; the tasks themselves implement the private ones, in float64 on the CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from reprior import priors
from reprior.errors import InputError
from reprior.networks.fit import Training
from reprior.networks.masks import MaskMix
from reprior.networks.simformer import SimformerSettings

__all__ = ["FORECAST", "THETA_ONLY", "Recipe", "Task", "log_density"]


@dataclass(frozen=True)
class Recipe:
    """How a base of a task is trained.

    Attributes:
        network: the settings of the network; None for the network's defaults.
        training: the settings of the training.
    """

    network: Any
    training: Training


# Series, whose predictive is asked for, train all masks, most often the start of a series as what is given; the others
# theta | x alone, which needs far fewer steps. A Simformer row gives several noisy states, so a batch of 128 is as
# large as one of 512 of the MLP.
THETA_ONLY = SimformerSettings(masks=MaskMix(1, 0, 0, 0, 0), absent=0.0)
FORECAST = SimformerSettings(masks=MaskMix(0.25, 0.01, 0.02, 0.06, 0.02, forecast=0.64))


def log_density(prior: Any, theta: Tensor) -> Tensor:
    """log prior(theta) in float64, -inf outside the support.

    Arguments:
        theta: parameters, with shape (*, d). They are rounded to float32, the type of most priors' own
        numbers.
    """
    return priors.log_prob(prior, theta.float()).double()


class Task(ABC):
    """A benchmark task.

    Attributes:
        name: the name that `reprior_bench.tasks.get` takes.
        title: the name that tables and figures show.
        dim: d, the number of parameters.
        x_dim: the number of data points in one observation.
        parameters: the names of the parameters.
        regimes: the names of the (p, q) pairs.
        reference_kind: what the reference posterior is, in one line.
        description: the task, in one line.
        has_reference: whether the reference posterior exists; without one the task takes no part in the benchmark.
        is_series: whether x is a series whose rest can be predicted from its start (`predict_reference`).
        has_joint_reference: whether `joint_reference` exists.
        noise_variance: v, where x = theta + N(0, v I); None for other likelihoods.
        recipes: how the bases of preset best are trained, by network ("mlp", "simformer").
        paper_patch: neighbouring points of x that share a token in preset paper.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    dim: ClassVar[int]
    x_dim: ClassVar[int]
    parameters: ClassVar[tuple[str, ...]]
    regimes: ClassVar[tuple[str, ...]] = ("id", "ood")
    reference_kind: ClassVar[str]
    description: ClassVar[str]
    has_reference: ClassVar[bool] = True
    is_series: ClassVar[bool] = False
    has_joint_reference: ClassVar[bool] = False
    noise_variance: ClassVar[float | None] = None
    recipes: ClassVar[Mapping[str, Recipe]] = {}
    paper_patch: ClassVar[int] = 1

    def training_prior(self, regime: str) -> Distribution:
        """p(theta) of a regime."""
        return self._priors(self._check_regime(regime))[0]

    def target_prior(self, regime: str) -> Distribution:
        """q(theta) of a regime."""
        return self._priors(self._check_regime(regime))[1]

    def simulate(self, theta: Tensor, seed: int) -> Tensor:
        """One simulation for each parameter vector.

        Arguments:
            theta: parameters, with shape (n, d).
            seed: the same seed and theta give the same data.

        Returns: x, float32, with shape (n, x_dim).
        """
        checked = self._check_theta(theta)
        x = self._simulate(checked, np.random.default_rng(seed))
        return x.to(device=theta.device, dtype=torch.float32)

    def log_likelihood(self, theta: Tensor, x: Tensor) -> Tensor:
        """log p(x | theta) of one observation.

        Arguments:
            theta: parameters, with shape (n, d).
            x: one observation, with shape (x_dim,) or (1, x_dim).

        Returns: the log-density of x, float32, with shape (n,).
        """
        value = self._log_likelihood(self._check_theta(theta), self._check_x(x))
        return value.to(device=theta.device, dtype=torch.float32)

    def reference(self, x: Tensor, n: int, regime: str, prior: str | Distribution = "target", seed: int = 0) -> Tensor:
        """Independent draws from the posterior of one observation; see ``reference_kind``.

        Arguments:
            x: one observation, with shape (x_dim,) or (1, x_dim).
            n: the number of draws.
            regime: "id" or "ood".
            prior: "target" (q), "training" (p), or a Distribution of event shape (d,).

        Returns: theta, float32, with shape (n, d).
        """
        checked = self._check_x(x)
        resolved = self._check_prior(prior, regime)
        theta = self._reference(checked, _check_count(n), resolved, np.random.default_rng(seed))
        return theta.to(device=x.device, dtype=torch.float32)

    def joint_reference(
        self, x: Tensor, n: int, regime: str, prior: str | Distribution = "training", seed: int = 0
    ) -> Tensor:
        """Independent draws from the posterior of several independent observations of one theta.

        Arguments:
            x: the observations, with shape (K, x_dim).
            n: the number of draws.
            regime: "id" or "ood".
            prior: as in `reference`.

        Returns: theta, float32, with shape (n, d).
        """
        rows = torch.stack([self._check_x(row) for row in x])
        resolved = self._check_prior(prior, regime)
        theta = self._joint_reference(rows, _check_count(n), resolved, np.random.default_rng(seed))
        return theta.to(device=x.device, dtype=torch.float32)

    def predict_reference(
        self,
        x_observed: Tensor,
        observed: Tensor,
        n: int,
        regime: str,
        prior: str | Distribution = "target",
        seed: int = 0,
    ) -> Tensor:
        """Draws of the whole series given some of its points: the posterior predictive, where a task has it.

        Arguments:
            x_observed: the observation, with shape (x_dim,) or (1, x_dim); unobserved entries are not read.
            observed: True where x_observed is given, with shape (x_dim,).

        Returns: x, float32, with shape (n, x_dim), equal to x_observed where observed.
        """
        observed = torch.as_tensor(observed)
        if observed.dtype != torch.bool or tuple(observed.shape) != (self.x_dim,):
            raise InputError(
                f"observed must be a bool mask of shape ({self.x_dim},); "
                f"got {observed.dtype} of shape {tuple(observed.shape)}"
            )
        mask = observed.cpu()
        given = x_observed.detach().cpu().double().reshape(-1)
        if given.shape[0] == self.x_dim:
            given = torch.where(mask, given, 0.0)
        checked = self._check_x(given.reshape(x_observed.shape))
        resolved = self._check_prior(prior, regime)
        x = self._predict(checked, mask, _check_count(n), resolved, np.random.default_rng(seed))
        x = torch.where(mask, checked, x)
        return x.to(device=x_observed.device, dtype=torch.float32)

    def observations(self, regime: str, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """Test observations: n draws of q(theta) p(x | theta).

        Returns: theta_star with shape (n, d) and x with shape (n, x_dim).
        """
        draw_seed, noise_seed = np.random.SeedSequence(seed).generate_state(2)
        theta_star = priors.sample(self.target_prior(regime), _check_count(n), int(draw_seed)).float()
        return theta_star, self.simulate(theta_star, int(noise_seed))

    def __repr__(self) -> str:
        return f"Task({self.name!r}, dim={self.dim}, x_dim={self.x_dim})"

    @abstractmethod
    def _priors(self, regime: str) -> tuple[Distribution, Distribution]:
        """(p, q) of a regime that is known to exist."""

    @abstractmethod
    def _simulate(self, theta: Tensor, rng: np.random.Generator) -> Tensor:
        """x (n, x_dim) for theta (n, d)."""

    @abstractmethod
    def _log_likelihood(self, theta: Tensor, x: Tensor) -> Tensor:
        """log p(x | theta), (n,), for theta (n, d) and x (x_dim,)."""

    @abstractmethod
    def _reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        """n posterior draws for x (x_dim,)."""

    def _joint_reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        raise InputError(
            f"{self.name} has no reference posterior of several observations; gaussian_linear and oup have one"
        )

    def _predict(self, x: Tensor, observed: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        raise InputError(f"{self.name} has no reference predictive: its data are not a series; oup and turin have one")

    def _check_regime(self, regime: str) -> str:
        if regime not in self.regimes:
            raise InputError(f"unknown regime {regime!r}; allowed: {', '.join(self.regimes)}")
        return regime

    def _check_prior(self, prior: str | Distribution, regime: str) -> Any:
        self._check_regime(regime)
        if isinstance(prior, str):
            if prior not in ("target", "training"):
                raise InputError(f"unknown prior {prior!r}; allowed: 'target', 'training', or a torch Distribution")
            return self.target_prior(regime) if prior == "target" else self.training_prior(regime)
        resolved = priors.as_prior(prior)
        if priors.dim_of(resolved) != self.dim:
            raise InputError(f"the prior draws {priors.dim_of(resolved)} parameters, but {self.name} has {self.dim}")
        return resolved

    def _check_theta(self, theta: Tensor) -> Tensor:
        if theta.ndim != 2 or theta.shape[1] != self.dim:
            raise InputError(f"{self.name} takes theta of shape (n, {self.dim}); got {tuple(theta.shape)}")
        if not bool(torch.isfinite(theta).all()):
            raise InputError(f"{self.name} takes finite theta; got NaN or infinity")
        return theta.detach().cpu().double()

    def _check_x(self, x: Tensor) -> Tensor:
        if tuple(x.shape) not in ((self.x_dim,), (1, self.x_dim)):
            raise InputError(
                f"{self.name} takes one observation of shape ({self.x_dim},) or (1, {self.x_dim}); got {tuple(x.shape)}"
            )
        if not bool(torch.isfinite(x).all()):
            raise InputError(f"{self.name} takes a finite observation; got NaN or infinity")
        return x.detach().cpu().double().reshape(-1)


def _check_count(n: int) -> int:
    if n < 1:
        raise InputError(f"the number of draws must be at least 1; got {n}")
    return int(n)
