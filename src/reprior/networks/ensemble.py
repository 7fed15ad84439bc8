"""An ensemble of MLPs trained in cross-validation, for few simulations.

The simulations are split into K folds, and member k trains on all folds but the k-th. The held-out loss of a simulation is
that of the one member that has not seen it. Every simulation is thus used for training and for the held-out loss, which
then has the standard error of all simulations. The ensemble's denoised mean is the average over the members. The average
has a smaller error than a single member (Lakshminarayanan et al. 2017, arXiv 1612.01474), so the held-out loss, which
is that of single members, errs on the safe side. All members share one Gaussian guess (`reprior.networks.guess`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor, nn

from reprior.diffusion.denoiser import Base, Denoiser
from reprior.networks.mlp import MLPBase, MLPSettings

__all__ = ["MLPEnsemble"]


class MLPEnsemble(Base):
    """K MLPs whose denoised means are averaged.

    Arguments:
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        settings: the settings of all members, and their number.
        embedding: the user's own embedding module for x, of which each member has a copy.
    """

    def __init__(self, dim: int, x_dim: int, settings: MLPSettings, embedding: nn.Module | None = None):
        super().__init__()
        self.dim, self.x_dim, self.settings, self.noise = dim, x_dim, settings, settings.noise
        self.s_min, self.s_max = settings.law.s_min, settings.law.s_max
        self.own_embedding = embedding is not None
        one = replace(settings, members=1)
        self.members = nn.ModuleList([MLPBase(dim, x_dim, one, embedding) for _ in range(settings.members)])

    @property
    def first(self) -> MLPBase:
        """The first member; all members have the same guess and the same input from x."""
        return self.each[0]

    @property
    def each(self) -> list[MLPBase]:
        """The members."""
        return [member for member in self.members if isinstance(member, MLPBase)]

    @property
    def guess(self) -> nn.Module:
        """The Gaussian guess, which the members share."""
        return self.first.guess

    def prepare(self, theta: Tensor, x: Tensor, steps: int = 3_000, kept: Tensor | None = None) -> tuple[Tensor, ...]:
        rows = self.first.prepare(theta, x, steps, kept)
        for member in self.each[1:]:
            state = {k: v for k, v in self.first.state_dict().items() if k.startswith(("guess.", "axes"))}
            member.load_state_dict(state, strict=False)
            member.guess.fitted = True
            member.guess.requires_grad_(False).eval()
        fold = torch.arange(len(theta), device=theta.device) % len(self.members)
        return (*rows, fold)

    def loss_of(self, rows: tuple[Tensor, ...], generator: Generator) -> Tensor:
        f, target = self.answers(rows, generator)
        return (f - target).square().mean(-1)

    def answers(self, rows: tuple[Tensor, ...], generator: Generator) -> tuple[Tensor, Tensor]:
        """Outputs and targets as in `MLPBase.answers`.

        In training each row comes K - 1 times, once for each member that trains on it. In evaluation it comes once, for the
        member that has not seen it, in the order of the rows.
        """
        scaled, width, read, fold = rows
        z_in, features, target = self.first.noisy(scaled, width, generator)
        answers, targets, order = [], [], []
        for k, member in enumerate(self.each):
            at = ((fold != k) if self.training else (fold == k)).nonzero()[:, 0]
            answers.append(member.residual(z_in[at], features[at], member.from_x(member.embedding(read[at]))))
            targets.append(target[at])
            order.append(at)
        f, target = torch.cat(answers), torch.cat(targets)
        if self.training:
            return f, target
        back = torch.cat(order).argsort()
        return f[back], target[back]

    def loss(self, theta: Tensor, x: Tensor, generator: Generator) -> Tensor:
        """The denoising loss of the averaged output, per row, with shape (n,)."""
        scaled, width, read = self.first.rows_of(theta, x)
        z_in, features, target = self.first.noisy(scaled, width, generator)
        answers = [m.residual(z_in, features, m.from_x(m.embedding(read))) for m in self.each]
        return (torch.stack(answers).mean(0) - target).square().mean(-1)

    def trust(self, factor: float) -> None:
        """Scales the output of every member by a factor; with 0 the guess alone remains."""
        for member in self.each:
            member.trust(factor)

    def features(self, x: Tensor) -> Tensor:
        return self.first.read(x)

    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        return _Mean([member.condition(x, predict) for member in self.each])

    def config(self) -> dict:
        return {**self.first.config(), "settings": {**self.first.config()["settings"], "members": len(self.members)}}


class _Mean(Denoiser):
    """The average of several denoisers of the same observations."""

    def __init__(self, parts: list[Denoiser]):
        self.parts, one = parts, parts[0]
        self.dim, self.noise, self.x = one.dim, one.noise, one.x
        self.s_min, self.s_max, self.observations = one.s_min, one.s_max, one.observations

    def select(self, k: int | list[int]) -> Denoiser:
        return _Mean([part.select(k) for part in self.parts])

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        return torch.stack([part.mean(z, s) for part in self.parts]).mean(0)

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        return torch.stack([part.mean_full(z, cov) for part in self.parts]).mean(0)
