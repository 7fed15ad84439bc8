"""The exact posterior after each window, from the likelihood: what the sequential update approximates.

The noise of a window is Gaussian and independent, so its likelihood is known. With S_n(theta, t0) the sum of squared
residuals of the light curve of theta = (k, a, inc, P, u1, u2) over the m_n points of window n, and the window's own midpoint and
noise integrated out under their priors,

    L_n(theta) = sum over t0 of p(t0)  sum over sigma of p(sigma) sigma^-m_n exp(-S_n(theta, t0) / (2 sigma^2)).

A circular orbit gives a light curve that is even in time: one curve of theta on a grid of |t - t0|, with a step of at most
0.0004 d (35 s) that divides a bin, serves every window and every t0. The posterior after n windows follows from that after
n - 1 by weights L_n, resampling and Metropolis moves under L_1 ... L_n p (sequential Monte Carlo; where the weights
concentrate, L_n enters in several powers that add up to one). After the moves along differences of other samples one move
redraws P given a / P and a cos(inc), which the likelihood hardly sees (`known_period`). No network is involved.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from reprior import priors
from reprior.errors import InputError
from reprior.sequential.moves import difference_moves
from reprior.weights import multinomial, temper_step
from reprior_transits.known_period import redraw_period
from reprior_transits.transit import transit_model
from reprior_transits.transit_prior import MEAN, PARAMETERS, STD, TransitPrior, fold_inclination, physical

__all__ = ["ExactLikelihood", "exact_steps"]

T0, SIGMA = PARAMETERS.index("t0"), PARAMETERS.index("sigma")
STEP = 4e-4  # days, of the t0 grid: at most the standard error of a midpoint
LARGEST_T0 = 0.015  # days, of the t0 grid: windows are centred on their dips far better than that
HALF_TRANSIT = 0.2  # days from mid-transit: the light curve is 1 beyond (a longer transit is cut there)
NODES = 24  # of the integral over sigma
ROWS = 500  # light curves at once, which bounds the memory
LOWEST_ESS = 0.3  # the relative ESS that a power of L_n keeps, of 1,000 samples or fewer


class ExactLikelihood:
    """log L_n(theta) of some windows.

    Arguments:
        x: the windows, NaN where missing, with shape (N, points).
        half_width: of the windows, in days.
        supersample: as in `TransitSimulator`.
    """

    def __init__(self, x: Tensor, half_width: float, supersample: int = 5):
        if x.ndim != 2 or x.shape[1] % 2:
            raise InputError(f"x must have shape (N, points), points even; got {tuple(x.shape)}")
        points = x.shape[1]
        width = 2 * half_width / points
        fine = 2 * math.ceil(width / STEP / 2)  # steps in a bin; even, so that bin centres lie on the grid
        shifts = torch.arange(-round(LARGEST_T0 * fine / width), round(LARGEST_T0 * fine / width) + 1)
        centres = torch.arange(points) * fine + fine // 2 - points * fine // 2
        near = centres.abs() * (width / fine) <= HALF_TRANSIT
        centres = centres[near]
        self.index = (centres - shifts.unsqueeze(1)).abs()  # steps from mid-transit, with shape (G, points)
        self.t0 = shifts.double() * (width / fine)
        times = np.arange(int(self.index.max()) + 1, dtype=np.float64) * (width / fine)
        self.model: Any = transit_model(times, width, supersample)
        present, depth = ~torch.isnan(x), (1 - x.double()).nan_to_num(0.0)
        self.count, self.outside = present.sum(1).double(), depth[:, ~near].square().sum(1)
        self.present, self.depth = present[:, near].float(), depth[:, near].float()
        low, high = MEAN[SIGMA] / 5, MEAN[SIGMA] + 5 * STD[SIGMA]
        self.sigma = torch.linspace(math.log(low), math.log(high), NODES, dtype=torch.float64).exp()

    def __call__(self, theta: Tensor, windows: int) -> Tensor:
        """log L_n of each of the first windows, up to constants, with shape (n, windows); -inf where unphysical.

        Arguments:
            theta: parameters, with shape (n, 8); their t0 and sigma are not used.
            windows: the number of windows.
        """
        good = physical(theta)
        out = torch.full((len(theta), windows), -torch.inf, dtype=torch.float64)
        if bool(good.any()):
            out[good] = torch.cat([self._rows(part.double(), windows) for part in theta[good].split(ROWS)])
        return out

    def _rows(self, theta: Tensor, windows: int) -> Tensor:
        k, a, inc, period, *_ = np.ascontiguousarray(theta.numpy().T)
        flux = self.model.evaluate(
            k, np.ascontiguousarray(theta[:, 5:7].numpy()), np.zeros(len(k)), period, a, np.deg2rad(inc)
        )
        curve = (1 - torch.from_numpy(np.reshape(flux, (len(theta), -1)))).float()[:, self.index]  # (n, G, points)
        present, depth = self.present[:windows], self.depth[:windows]
        squares = depth.square().sum(1) - 2 * curve @ depth.T + curve**2 @ present.T  # (n, G, windows)
        squares = squares.double() + self.outside[:windows]
        weight = _gauss(self.sigma, SIGMA) + (1 - self.count[:windows, None]) * self.sigma.log()
        over_sigma = torch.logsumexp(weight - squares.unsqueeze(-1) / (2 * self.sigma**2), -1)
        return torch.logsumexp(over_sigma + _gauss(self.t0, T0).unsqueeze(-1), 1)


def exact_steps(
    x: Tensor,
    half_width: float,
    samples: int = 1_000,
    moves: int = 8,
    first: int = 4_000,
    seed: int = 0,
    progress: bool = False,
) -> list[Tensor]:
    """Samples of the exact posterior after each window.

    Arguments:
        x: the windows, NaN where missing, with shape (N, points).
        half_width: of the windows, in days.
        samples: the number of samples after each window.
        moves: Metropolis moves of each sample at each stage.
        first: draws of the prior that the first window is weighted on.
        seed: the same seed gives the same samples on the same machine.
        progress: show a progress bar.

    Returns: theta after each window, inc <= 90, each with shape (samples, 8); t0 and sigma are those of the prior's mean.
    """
    likelihood, prior = ExactLikelihood(x, half_width), TransitPrior()
    generator = torch.Generator().manual_seed(seed)
    theta = priors.sample(prior, first, seed)
    theta[:, T0], theta[:, SIGMA] = MEAN[T0], MEAN[SIGMA]
    steps = []
    for n in tqdm(range(1, len(x) + 1), desc="exact posteriors", disable=not progress):
        done = 0.0
        logs = likelihood(theta, n)[:, -1]
        while done < 1:
            power = temper_step(logs, 1 - done, LOWEST_ESS * min(1.0, 1_000 / len(logs)))
            theta = theta[multinomial(power * logs, samples, generator)]
            done = min(1.0, done + power)
            scale = torch.ones(n, dtype=torch.float64)
            scale[-1] = done

            def log_f(theta: Tensor, scale: Tensor = scale) -> Tensor:
                folded = fold_inclination(theta)
                value = (likelihood(folded, len(scale)) * scale).sum(1)
                return value + priors.log_prob(prior, folded).double()

            theta = fold_inclination(difference_moves(log_f, theta, moves, generator)[0])
            theta = _redraw(likelihood, theta, scale, generator)
            theta[:, T0], theta[:, SIGMA] = MEAN[T0], MEAN[SIGMA]
            logs = likelihood(theta, n)[:, -1]
        steps.append(theta.clone())
    return steps


def _redraw(likelihood: ExactLikelihood, theta: Tensor, scale: Tensor, generator: torch.Generator) -> Tensor:
    """A Metropolis move whose proposal is the conditional of P given v and b: it is accepted by the ratio of likelihoods."""
    there = redraw_period(theta, generator)
    logs, here = ((likelihood(one, len(scale)) * scale).sum(1) for one in (there, theta))
    take = torch.rand(len(theta), generator=generator).log() < logs - here
    return torch.where(take.unsqueeze(-1), there, theta)


def _gauss(value: Tensor, i: int) -> Tensor:
    """log p of parameter i under the Gaussian prior, up to a constant."""
    return -(((value - MEAN[i]) / STD[i]) ** 2) / 2
