"""The exact likelihood of a Turin channel with one path, and its delay and gain given the data.

Let P_n be the observed power, u = N df tau in (0, 50.5) the delay in samples, D_n(u) = sinc(n - u) / sinc((n
- u) / N) and G = |alpha|^2 the gain. IFFT of the transfer function is alpha D_n times a phase, plus CN(0,
sigma^2 / N), independent over n, so P_n is noncentral chi-square given (u, G). With b = 2 N sqrt(G) /
sigma^2,

    p(P | u, G) = prod_n N/sigma^2 exp(-N P_n/sigma^2) I_0(b sqrt(P_n) |D_n(u)|) exp(-b^2 sigma^2 D_n(u)^2 /
    4N),

u is uniform and G is exponential with mean m = g_0 / lambda_0. The factor h(u, b) = sum_n log I_0(b sqrt(P_n)
|D_n|) holds no parameter: it is tabulated once an observation, on delays that are split where the integrand
is steep. The integral over u is then a table in (sigma^2, b); that over G, by the trapezoid rule in sqrt(G),
a table in (sigma^2, m); both are smooth and are interpolated by cubic splines of their logarithms. The
products run over the observed n only.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.interpolate import CubicSpline, RectBivariateSpline
from scipy.special import logsumexp

__all__ = ["N_POINTS", "OnePath", "amplitude"]

N_POINTS = 101
_U_MAX = N_POINTS * 0.5
_FIRST_SPLIT, _LEVELS, _STEEP = 4, 9, 0.25


def amplitude(u: np.ndarray, index: np.ndarray) -> np.ndarray:
    """|D_n(u)|, with shape (len(u), len(index)): the amplitude of a path of delay u at sample n."""
    gap = index - u[:, None]
    return np.abs(np.sinc(gap) / np.sinc(gap / N_POINTS))


class OnePath:
    """The likelihood of the observed powers of a one-path channel.

    Arguments:
        power: P_n, with shape (101,).
        index: the observed n, with shape (k,).
    """

    def __init__(self, power: np.ndarray, index: np.ndarray):
        self.index = index
        self.root = np.sqrt(power[index])
        self.window = self._variance_window()
        self._tables: list[_Table] = []

    def log_likelihood(self, variance: np.ndarray, mean_gain: np.ndarray) -> np.ndarray:
        """log p(P_n, n observed), with shape (n,).

        It is -inf for variances that lie so far off that the likelihood is below exp(-80) of its largest
        value.

        Arguments:
            variance: sigma^2, with shape (n,).
            mean_gain: m, with shape (n,).
        """
        value = np.full(len(variance), -np.inf)
        inside = (variance > self.window[0]) & (variance < self.window[1])
        if inside.any():
            table = self._table(variance[inside], mean_gain[inside])
            value[inside] = table.log_likelihood(variance[inside], mean_gain[inside])
        return value

    def draw(
        self, variance: np.ndarray, mean_gain: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The delay u and the gain G given the observed powers and the parameters, each with shape (n,)."""
        return self._table(variance, mean_gain).draw(variance, mean_gain, rng)

    def _table(self, variance: np.ndarray, mean_gain: np.ndarray) -> _Table:
        """A table that covers these parameters: the last one, or a wider one in its place."""
        log_v, log_m = np.log(variance), np.log(mean_gain)
        if self._tables:
            log_v = np.append(log_v, self._tables[0].log_v)
            log_m = np.append(log_m, self._tables[0].log_m)
        wider = (log_v.min(), log_v.max(), log_m.min(), log_m.max())
        if not self._tables or wider != self._tables[0].limits:
            self._tables = [_Table(self, (wider[0], wider[1]), (wider[2], wider[3]))]
        return self._tables[0]

    def _variance_window(self) -> tuple[float, float]:
        """Where the likelihood can be within exp(-80) of its largest value.

        I_0(z) <= exp(z) bounds it by (N/sigma^2)^k exp(-N R/sigma^2), with R the smallest residual of the
        amplitudes; what this bound gives away at the largest value is less than 1.5 a point.
        """
        shape = amplitude(np.linspace(0, _U_MAX, 809), self.index)
        fitted = (shape @ self.root) ** 2 / np.maximum((shape**2).sum(-1), 1e-300)
        total = (self.root**2).sum()
        residual = max(0.5 * float((total - fitted).min()), 1e-12 * total + 1e-300)
        k = len(self.index)
        y = np.exp(np.linspace(-60, 20, 8001))  # y = N R / (k sigma^2)
        inside = y[np.log(y) - y + 1 > -(80 + 1.5 * k) / k]
        scale = N_POINTS * residual / k
        return scale / inside[-1], scale / inside[0]


class _Table:
    """The tables of one observation for a range of parameters."""

    def __init__(self, path: OnePath, log_v: tuple[float, float], log_m: tuple[float, float]):
        self.path = path
        self.log_v, self.log_m = _axis(log_v, 0.08), _axis(log_m, 0.15)
        self.limits = (self.log_v[0], self.log_v[-1], self.log_m[0], self.log_m[-1])
        v_low, v_high = np.exp(self.log_v[[0, -1]])
        self.root_gain_max = np.sqrt(45 * np.exp(self.log_m[-1]))
        # b on an asinh axis: fine where the peaks of the integrand over u overtake each other, coarse beyond.
        self.b_scale = 8 / max(path.root.max(), 1e-6)
        top = np.arcsinh(2 * N_POINTS * self.root_gain_max / v_low / self.b_scale)
        # With all points observed sum_n D_n^2 = 1 and the table is smoother. The log-likelihood is good to 0.003.
        step = 0.12 if len(path.index) == N_POINTS else 0.07
        self.axis = np.linspace(0, top, int(np.ceil(top / step)) + 4)
        self.b = self.b_scale * np.sinh(self.axis)
        self.u, self.width, self.h, self.energy = self._delays(v_low, v_high)
        self.energy_max = self.energy.max()
        self.log_k = np.stack([self._over_delays(v) for v in np.exp(self.log_v)])
        values = np.stack([self._over_gain(i) for i in range(len(self.log_v))])
        self.surface = RectBivariateSpline(self.log_v, self.log_m, values)

    def log_likelihood(self, variance: np.ndarray, mean_gain: np.ndarray) -> np.ndarray:
        return self.surface.ev(np.log(variance), np.log(mean_gain))

    def draw(
        self, variance: np.ndarray, mean_gain: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        surface = RectBivariateSpline(self.log_v, self.axis, self.log_k)
        root = np.empty(len(variance))
        u = np.empty(len(variance))
        h_of_b = CubicSpline(self.axis, self.h)
        for rows in np.array_split(np.arange(len(variance)), max(1, len(variance) // 500)):
            v, m = variance[rows, None], mean_gain[rows, None]
            r = self._root_gain(float(v.min()))
            axis = np.arcsinh(2 * N_POINTS * r / v / self.b_scale)
            log_f = surface.ev(np.broadcast_to(np.log(v), axis.shape), axis) + self._gain_terms(r, v, m)
            root[rows] = _inverse_cdf(r, log_f, rng)
            b = 2 * N_POINTS * root[rows] / variance[rows]
            log_f = h_of_b(np.arcsinh(b / self.b_scale)) + np.log(self.width)
            log_f -= (b**2 * variance[rows] / (4 * N_POINTS))[:, None] * self.energy
            cell = (log_f + rng.gumbel(size=log_f.shape)).argmax(-1)
            u[rows] = self.u[cell] + self.width[cell] * rng.uniform(-0.5, 0.5, len(rows))
        return u, root**2

    def _delays(self, v_low: float, v_high: float) -> tuple[np.ndarray, ...]:
        """Midpoints u (U,) and widths of cells of delay, h (b, U) and sum_n D_n(u)^2 (U,)."""
        edges = np.linspace(0, _U_MAX, int(_FIRST_SPLIT * _U_MAX) + 1)
        u, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        h, energy = self._evaluate(u)
        for _ in range(_LEVELS):
            steep = np.zeros(len(u), dtype=bool)
            for v in (v_low, v_high):
                exponent = h - (self.b**2 * v / (4 * N_POINTS))[:, None] * energy
                share = np.exp(exponent - exponent.max(-1, keepdims=True))
                jump = np.abs(np.diff(exponent, axis=-1)) * np.maximum(share[:, 1:], share[:, :-1])
                between = (jump > _STEEP).any(0)
                steep[1:] |= between
                steep[:-1] |= between
            if not steep.any():
                break
            halves = np.repeat(width[steep] / 2, 2)
            inner = np.repeat(u[steep], 2) + halves * np.tile([-0.5, 0.5], int(steep.sum()))
            new_h, new_energy = self._evaluate(inner)
            u, width = np.concatenate([u[~steep], inner]), np.concatenate([width[~steep], halves])
            h, energy = np.concatenate([h[:, ~steep], new_h], 1), np.concatenate([energy[~steep], new_energy])
            order = np.argsort(u)
            u, width, h, energy = u[order], width[order], h[:, order], energy[order]
        return u, width, h, energy

    def _evaluate(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """h (b, U) and sum_n D_n(u)^2 (U,) at delays u."""
        shape = amplitude(u, self.path.index)
        a = torch.from_numpy(shape * self.path.root)
        parts = []
        for b in torch.from_numpy(self.b).split(max(1, 30_000 // a.numel())):
            z = b[:, None, None] * a
            # i0e(z) = I_0(z) exp(-z): float32 is good enough for its logarithm, not for z.
            parts.append((torch.special.i0e(z.float()).log_() + z).sum(-1))
        return torch.cat(parts).numpy(), (shape**2).sum(-1)

    def _over_delays(self, v: float) -> np.ndarray:
        """log of the mean over u at each b, without the factor exp(-b^2 v energy_max / 4N)."""
        exponent = self.h - (self.b**2 * v / (4 * N_POINTS))[:, None] * (self.energy - self.energy_max)
        return np.asarray(logsumexp(exponent, axis=-1, b=self.width / _U_MAX))

    def _over_gain(self, i: int) -> np.ndarray:
        """log p(P | sigma^2, m) for the i-th sigma^2 and every m."""
        v, m = np.exp(self.log_v[i]), np.exp(self.log_m)[:, None]
        r = self._root_gain(v)
        log_k = CubicSpline(self.axis, self.log_k[i])(np.arcsinh(2 * N_POINTS * r / v / self.b_scale))
        log_f = log_k + self._gain_terms(r, v, m)
        noise = len(self.path.index) * np.log(N_POINTS / v) - N_POINTS * (self.path.root**2).sum() / v
        return noise + logsumexp(log_f, axis=-1) + np.log(r[1] - r[0])

    def _root_gain(self, v: float) -> np.ndarray:
        """A grid of sqrt(G), finer than the width sqrt(sigma^2 / 2N) of the likelihood in it."""
        count = int(np.ceil(self.root_gain_max / (0.4 * np.sqrt(v / (2 * N_POINTS)))))
        step = self.root_gain_max / min(count, 20_000)
        return np.arange(step / 2, self.root_gain_max, step)

    def _gain_terms(self, r: np.ndarray, v: np.ndarray | float, m: np.ndarray) -> np.ndarray:
        """log of the density of r = sqrt(G) given m, and of the factor that `_over_delays` leaves out."""
        return np.log(2 * r / m) - r**2 / m - N_POINTS * r**2 / v * self.energy_max


def _axis(limits: tuple[float, float], step: float) -> np.ndarray:
    """An even axis a little wider than the limits."""
    low, high = limits[0] - 0.05, limits[1] + 0.05
    return np.linspace(low, high, max(6, int(np.ceil((high - low) / step)) + 1))


def _inverse_cdf(r: np.ndarray, log_f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One draw for each row of log_f (n, len(r)), uniform within its cell."""
    cell = (log_f + rng.gumbel(size=log_f.shape)).argmax(-1)
    return r[cell] + (r[1] - r[0]) * rng.uniform(-0.5, 0.5, len(cell))
