"""What every benchmark task offers: a simulator, two pairs of priors and a reference posterior.

A task is p(x | theta) with a training prior p(theta) and a target prior q(theta), in two regimes: ``id`` (q
lies within p) and ``ood`` (q reaches where p has little mass). The reference draws from

    prior(theta) p(x | theta) / normaliser

for ANY prior: one of the task's own, or a torch Distribution. What "reference" means for a task is in
``Task.reference_kind``.

Public methods validate and convert; the tasks themselves implement the private ones, in float64 on the CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from reprior import priors
from reprior.errors import InputError

__all__ = ["Task", "log_density"]


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
        dim: d, the number of parameters.
        x_dim: the number of data points in one observation.
        parameters: the names of the parameters.
        regimes: the names of the (p, q) pairs.
        reference_kind: what the reference posterior is, in one line.
        description: the task, in one line.
    """

    name: ClassVar[str]
    dim: ClassVar[int]
    x_dim: ClassVar[int]
    parameters: ClassVar[tuple[str, ...]]
    regimes: ClassVar[tuple[str, ...]] = ("id", "ood")
    reference_kind: ClassVar[str]
    description: ClassVar[str]

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
