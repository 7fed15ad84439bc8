"""A learned weight for each training row, so that wide posteriors do not dominate the loss.

The smallest squared error of a denoiser is the variance that the given data leave. It can differ by a factor of 100 or more
between observations (series of very different amplitudes, for instance). The mean squared error is then dominated by the
widest posteriors, and the network stays inaccurate for the others. With e the error of a row and u(given, noise) learned
beside the network, the loss

    e exp(-u) + u

is smallest where exp(u) is the mean of e, so each row counts in units of its own expected error. The weight depends only on
what the denoiser is given, so the optimal denoiser is still E[v | z, given]. The loss is that of a Gaussian with learned
variance (Kendall and Gal 2017, arXiv 1703.04977).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Difficulty"]

LARGEST = 12.0  # of |u|: e^12 is beyond any ratio of errors that occurs, and keeps exp(-u) finite


class Difficulty(nn.Module):
    """u, the log of the expected error; zero before training.

    Arguments:
        size: the number d + m of variables.
        width: the width of its two hidden layers.
    """

    def __init__(self, size: int, width: int = 64):
        super().__init__()
        self.given = nn.Linear(2 * size, width)
        self.noise = nn.Linear(1, width, bias=False)
        self.rest = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        last = self.rest[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, values: Tensor, given: Tensor, noise: Tensor) -> Tensor:
        """u, with shape (K, N).

        Arguments:
            values: the variables, with shape (K, d + m); what is not given, or NaN, is not read.
            given: which variables are given, with shape (d + m,).
            noise: the mean log of the noise levels, in units of the guess's residual widths, with shape (K, N).
        """
        seen = given & ~torch.isnan(values)
        inputs = torch.cat([torch.where(seen, values, 0.0), seen.to(values)], -1)
        u = self.rest(self.given(inputs).unsqueeze(1) + self.noise(noise.unsqueeze(-1) / 2)).squeeze(-1)
        return LARGEST * torch.tanh(u / LARGEST)

    def weigh(self, error: Tensor, u: Tensor) -> Tensor:
        """The loss of errors (K, N) that are expected to be exp(u)."""
        return error * torch.exp(-u) + u
