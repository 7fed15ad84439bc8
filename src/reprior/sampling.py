"""Drawing from a posterior: at one observation, at many, and predictions of missing entries of x.

`Draws` has the public methods, which check their arguments. A posterior implements `_draw`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Literal, overload

import torch
from torch import Tensor

from reprior.arrays import as_array
from reprior.diffusion.denoiser import Denoiser, Watched
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError, RefusedError
from reprior.info import Info
from reprior.seeds import check_seed, fresh_seed

__all__ = ["Draws", "as_shape", "check_x", "count_of", "redraw"]

MOST = (
    100  # an observation fails after this many draws per requested sample, that is, with under 1 % inside the support
)
AT_ONCE = 20  # draws per requested sample in one round of redrawing, which bounds the memory
FEWEST = 100  # the two limits above count requests for fewer samples as this many, so that a fraction can be measured
LOW_ACCEPTANCE = 0.25  # above this fraction of accepted draws, two draws for each missing sample suffice


class Draws(ABC):
    """Draws of theta given x."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number d of parameters."""

    @property
    @abstractmethod
    def x_dim(self) -> int:
        """The number m of entries of x."""

    @abstractmethod
    def _draw(
        self, x: Tensor, shape: Sequence[int], seed: int, sampler: Sampler | None, predict: bool, progress: bool
    ) -> tuple[Tensor, Info]:
        """Draws at observations x, with shape (K, m): shape (n, K, D), NaN where an observation failed."""

    @overload
    def sample(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = ...,
        sampler: Sampler | None = ...,
        return_info: Literal[False] = ...,
        progress: bool = ...,
        show_progress_bars: bool = ...,
    ) -> Tensor: ...
    @overload
    def sample(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = ...,
        sampler: Sampler | None = ...,
        *,
        return_info: Literal[True],
        progress: bool = ...,
        show_progress_bars: bool = ...,
    ) -> tuple[Tensor, Info]: ...
    def sample(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
        progress: bool = False,
        show_progress_bars: bool = False,
    ) -> Tensor | tuple[Tensor, Info]:
        """Draws theta for one observation.

        Arguments:
            sample_shape: the sample shape, (n,) or n.
            x: one observation, with shape (m,) or (1, m).
            seed: makes the draws repeatable; without it they follow torch's global random state.
            sampler: another sampler than the posterior's default.
            return_info: also return an `Info`.
            progress: show a progress bar.
            show_progress_bars: the same by sbi's name, so that its diagnostics (run_sbc, run_tarp) take this posterior.

        Returns: theta, with shape (*sample_shape, d), or (theta, info).
        """
        shape = as_shape(sample_shape)
        x = check_x(x, self.x_dim, single=True)
        theta, info = self._draw(x, shape, _seed(seed), sampler, False, progress or show_progress_bars)
        theta = _only(theta, info).reshape(*shape, self.dim)
        return (theta, info) if return_info else theta

    @overload
    def sample_batched(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = ...,
        sampler: Sampler | None = ...,
        return_info: Literal[False] = ...,
        progress: bool = ...,
        show_progress_bars: bool = ...,
    ) -> Tensor: ...
    @overload
    def sample_batched(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = ...,
        sampler: Sampler | None = ...,
        *,
        return_info: Literal[True],
        progress: bool = ...,
        show_progress_bars: bool = ...,
    ) -> tuple[Tensor, Info]: ...
    def sample_batched(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
        progress: bool = False,
        show_progress_bars: bool = False,
    ) -> Tensor | tuple[Tensor, Info]:
        """Draws theta for many observations. If one of them fails, the others are still drawn.

        Arguments:
            x: observations, with shape (K, m). The rest as in `sample`.

        Returns: theta, with shape (*sample_shape, K, d), NaN at observations that could not be drawn (``info.failed``
        names them, counted from 0); or (theta, info).
        """
        shape = as_shape(sample_shape)
        x = check_x(x, self.x_dim)
        theta, info = self._draw(x, shape, _seed(seed), sampler, False, progress or show_progress_bars)
        theta = theta.reshape(*shape, len(x), self.dim)
        return (theta, info) if return_info else theta

    @overload
    def predict(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = ...,
        sampler: Sampler | None = ...,
        return_info: Literal[False] = ...,
        progress: bool = ...,
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def predict(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = ...,
        sampler: Sampler | None = ...,
        *,
        return_info: Literal[True],
        progress: bool = ...,
    ) -> tuple[Tensor, Tensor, Info]: ...
    def predict(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
        progress: bool = False,
    ) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Info]:
        """Draws the missing entries of x with the parameters, (theta, x_missing) given x_observed.

        Arguments:
            x: one observation, with shape (m,), NaN where it is to be predicted. The rest as in `sample`.

        Returns: theta, with shape (*sample_shape, d), and x, with shape (*sample_shape, m), the observed entries filled
        in; and the info where it is asked for.
        """
        shape = as_shape(sample_shape)
        x = check_x(x, self.x_dim, single=True, missing=True)
        both, info = self._draw(x, shape, _seed(seed), sampler, True, progress)
        theta, full = self._split(_only(both, info), x[0])
        theta, full = theta.reshape(*shape, self.dim), full.reshape(*shape, self.x_dim)
        return (theta, full, info) if return_info else (theta, full)

    def _split(self, both: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Splits draws of (theta in user units, standardised x_missing), with shape (n, D), into theta and full x."""
        raise InputError("this posterior cannot predict x; train network='simformer' with reprior.train")


def _only(theta: Tensor, info: Info) -> Tensor:
    """The draws of the only observation; its failure is an error."""
    if info.failed:
        raise RefusedError(info.failed[0])
    return theta[:, 0]


def _seed(seed: int | None) -> int:
    return fresh_seed() if seed is None else check_seed(seed)


def count_of(shape: Sequence[int]) -> int:
    """The number of samples in a sample shape; at least one."""
    n = int(torch.Size(shape).numel())
    if n < 1:
        raise InputError(f"the sample shape must hold at least one sample; got {tuple(shape)}")
    return n


@contextmanager
def watched(denoiser: Denoiser, label: str, progress: bool) -> Iterator[Denoiser]:
    """The denoiser, with a progress bar of its evaluations where one is asked for."""
    if not progress or hasattr(denoiser, "draws"):  # a posterior that is no diffusion shows a bar of its own
        yield denoiser
        return
    from tqdm.auto import tqdm

    with tqdm(desc=label, unit=" evaluations") as bar:
        yield Watched(denoiser, bar.update)


def redraw(
    theta: Tensor, more: Callable[[list[int], int], Tensor], allowed: Callable[[Tensor], Tensor], outside: str
) -> tuple[Tensor, float, dict[int, str]]:
    """Replaces draws that are not allowed by new ones, until all are allowed or too many draws were made.

    Arguments:
        theta: draws, with shape (n, K, D), changed in place; observations that are all NaN are not touched.
        more: (some, count) -> new draws at the observations ``some``, with shape (count, len(some), D).
        allowed: which draws are allowed, (*, D) -> (*).
        outside: for the error message: what the other draws lie outside of, and a possible cause.

    Returns: theta, NaN at observations that failed; the fraction of draws that was rejected; and the observations that
    failed, each with the reason.
    """
    n, failed = len(theta), {}
    lost = theta.isnan().all(-1).all(0)
    bad = ~allowed(theta) & ~lost
    rejected = bad.sum(0)  # of each observation
    drawn = torch.full_like(rejected, n)
    while bool(bad.any()):
        for k in (bad.any(0) & (drawn > MOST * max(n, FEWEST))).nonzero()[:, 0].tolist():
            part = 100 * int(rejected[k]) / int(drawn[k])
            failed[k] = f"{part:.1f} % of the draws fall outside {outside} ({int(drawn[k]):,} were made)"
            theta[:, k], bad[:, k] = torch.nan, False
        some = bad.any(0).nonzero()[:, 0].tolist()
        if not some:
            break
        holes = int(bad.sum(0).max())
        accepted = max(float((1 - rejected / drawn)[some].min()), 1 / MOST)
        enough = math.ceil(1.2 * holes / accepted)
        again = more(some, 2 * holes if accepted > LOW_ACCEPTANCE else min(enough, AT_ONCE * max(n, FEWEST)))
        fine = allowed(again)
        drawn[some] += len(fine)
        rejected[some] += (~fine).sum(0)
        for i, k in enumerate(some):
            empty, fill = bad[:, k].nonzero()[:, 0], again[fine[:, i], i]
            count = min(len(empty), len(fill))
            theta[empty[:count], k] = fill[:count]
            bad[empty[:count], k] = False
    return theta, float(rejected.sum()) / float(drawn.sum()), failed


def as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A sample shape; n stands for (n,)."""
    return (int(shape),) if isinstance(shape, (int, Integral)) else tuple(shape)


def check_x(x: Tensor, x_dim: int, single: bool = False, missing: bool = False) -> Tensor:
    """x with shape (K, m), checked.

    Arguments:
        x: observations, with shape (m,) or (K, m).
        x_dim: the number m of entries.
        single: exactly one observation is allowed.
        missing: x must have NaN, which marks the entries that are to be predicted.
    """
    x = torch.as_tensor(as_array(x), dtype=torch.float32).detach().cpu()
    rows = x.unsqueeze(0) if x.ndim == 1 else x
    if rows.ndim != 2 or rows.shape[1] != x_dim:
        raise InputError(f"x needs shape ({x_dim},) or (K, {x_dim}); got {tuple(x.shape)}")
    if single and len(rows) != 1:
        raise InputError(
            f"one observation is needed here; got {len(rows)}. Use sample_batched for several, each "
            "with its own theta, or reprior.update for several of the same theta"
        )
    if torch.isinf(rows).any():
        raise InputError(f"x has infinite entries at {torch.isinf(rows).nonzero()[:5].tolist()} (row, entry)")
    if missing and not torch.isnan(rows).any():
        raise InputError(
            "nothing to predict: set the entries of x that are to be predicted to NaN (a base of network='simformer' predicts them)"
        )
    return rows
