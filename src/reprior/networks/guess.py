"""The guess that a base starts from: a Gaussian N(m(x), diag w(x)^2), fitted before the diffusion.

The diffusion network then works on (theta - m(x)) / w(x), which has about mean zero and unit variance at every x: an
posterior that is a hundred times narrower than another is as well scaled as that one, and for a linear-Gaussian
posterior nothing is left to learn.

m is a ridge regression of theta on x. With ``guess="gaussian"`` a network adds a correction to m. w is the standard
deviation of the regression's residuals, times a factor from the network. The network maximises the Gaussian likelihood.
Held-out simulations choose its training step, and they scale w so that the held-out residuals have unit variance.

The regression is cross-validated (`reprior.networks.ridge`): rows that were left out choose its penalty and give the
width w. The diffusion network must be trained on residuals of the same kind, not on the smaller ones of rows that the
regression was fitted to. So `fit` returns parameters that lie as far from m(x) as if their row had been left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reprior.networks.ridge import Ridge, fit_ridge

__all__ = ["Guess"]

NARROWEST = 1e-3  # smallest width w, in prior standard deviations: keeps (theta - m) / w finite
BATCH, RATE, CHECKS = (
    512,
    2e-3,
    30,
)  # rows per step, learning rate, held-out losses per training: a short, plain training
ROWS = 20_000  # rows that are evaluated together, which bounds the memory
MOST_STEPS = 4_000  # gradient steps; the guess is only a starting point, so more are not worth their time
HELD_OUT, FEW = 0.05, 500  # fraction of rows held out; at least FEW rows, but not over a quarter of all
LOG_RANGE = 7.0  # largest |log| of the network's factor on the width: a factor of 1,000 either way


class Guess(nn.Module):
    """m(x) and w(x).

    Arguments:
        dim: the number d of parameters.
        summary: the columns of the regression, (n, m) -> (n, k).
        size: its size k.
        embedding: the embedding of x for the network's correction, (n, m) -> (n, e); None for the regression alone.
        features: its size e.
    """

    slope: Tensor
    offset: Tensor
    spread: Tensor

    def __init__(self, dim: int, summary: nn.Module, size: int, embedding: nn.Module | None, features: int = 0):
        super().__init__()
        self.summary, self.embedding = summary, embedding
        self.register_buffer("slope", torch.zeros(dim, size))
        self.register_buffer("offset", torch.zeros(dim))
        self.register_buffer("spread", torch.ones(dim))
        self.head = None
        self.fitted = False
        if embedding is not None:
            self.head = nn.Linear(features, 2 * dim)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m(x) and w(x), each with shape (n, d), of standardised observations with shape (n, m)."""
        centre = self.regression(x)
        if self.embedding is None or self.head is None:
            return centre, self.spread.expand_as(centre)
        shift, log_factor = self.head(self.embedding(x)).chunk(2, dim=-1)
        factor = (LOG_RANGE * torch.tanh(log_factor / LOG_RANGE)).exp()
        return centre + self.spread * shift, (self.spread * factor).clamp(min=NARROWEST)

    def fit(
        self, theta: Tensor, x: Tensor, steps: int, kept: Tensor | None = None, axes: int = 0
    ) -> tuple[Tensor, Ridge]:
        """Fits the guess to standardised simulations, in at most so many steps.

        Arguments:
            theta: parameters, with shape (n, d).
            x: observations, with shape (n, m).
            steps: the largest number of steps of the network's training.
            kept: indices of the rows that the network may see; all by default. The regression is cross-validated over all.
            axes: the largest number of principal axes of x to return with the regression.

        Returns: parameters, with shape (n, d), shifted so that theta - m(x) is the residual of a regression without their
        row; and the regression.
        """
        ridge = fit_ridge(x, theta, axes, self.summary)
        self.slope.copy_(ridge.slope)
        self.offset.copy_(ridge.offset)
        square = ridge.left.square()
        surely = (
            square.mean(0) + square.std(0) / len(square) ** 0.5
        )  # few rows know their own spread badly: rather too wide
        self.spread.copy_(surely.nan_to_num().sqrt().clamp(min=NARROWEST))
        with torch.no_grad():
            crossed = torch.cat([self.regression(part) for part in x.split(ROWS)]) + ridge.left.to(theta)
        if self.head is not None:
            rows = slice(None) if kept is None else kept
            self._train(crossed[rows], x[rows], min(steps, MOST_STEPS))
        self.fitted = True
        self.requires_grad_(False).eval()
        return crossed, ridge

    def regression(self, x: Tensor) -> Tensor:
        """The linear part of m(x), with shape (n, d)."""
        return self.summary(x) @ self.slope.T + self.offset

    def train(self, mode: bool = True) -> Guess:
        """A fitted guess stays as it is: dropout or batch statistics of a user's embedding must not move it."""
        return super().train(mode and not self.fitted)

    def _surprise(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The negative log-density of each row, up to a constant, and (theta - m) / w."""
        centre, width = self(x)
        scaled = (theta - centre) / width
        return (scaled.square() / 2 + width.log()).mean(-1), scaled

    def _train(self, theta: Tensor, x: Tensor, steps: int) -> None:
        n_held = max(1, int(HELD_OUT * len(theta)), min(FEW, len(theta) // 4))
        held, kept = slice(len(theta) - n_held, None), len(theta) - n_held
        generator = torch.Generator().manual_seed(0)
        optimiser = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=RATE)
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        best, first, kept_state = float("inf"), torch.zeros(0), self.state_dict()
        for step in range(steps):
            if step % max(1, steps // CHECKS) == 0 or step == steps - 1:
                self.eval()
                with torch.no_grad():
                    each = self._surprise(theta[held], x[held])[0]
                self.train()
                first, now = (each if step == 0 else first), float(each.mean())
                # Step 0 is the regression alone. A network replaces it if it gains more than one standard error.
                gain = first - each
                if now < best and (step == 0 or float(gain.mean()) > float(gain.std()) / n_held**0.5):
                    best, kept_state = now, {k: v.clone() for k, v in self.state_dict().items()}
            rows = torch.randint(kept, (BATCH,), generator=generator).to(theta.device)
            loss = self._surprise(theta[rows], x[rows])[0].mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters(), 5.0)
            optimiser.step()
            rate.step()
        self.load_state_dict(kept_state)
        self.eval()
        with torch.no_grad():
            scaled = self._surprise(theta[held], x[held])[1]
            factor = scaled.square().mean(0).sqrt().clamp(0.5, 2.0)
            assert self.head is not None
            # Scale each width so that the held-out residuals have unit variance.
            self.head.bias[len(factor) :] += factor.log()
