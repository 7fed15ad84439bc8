"""Adapted samples for ArviZ: a DataTree with the posterior before and after the change of prior, and both priors.

| group | what |
|---|---|
| posterior | draws of q(theta \\| x) |
| base_posterior | draws of p(theta \\| x) |
| prior | draws of p |
| target_prior | draws of q |
| sample_stats | log q/p of the draws of q(theta \\| x) |
| observed_data | x (x_observed where a parameter is called x) |

Draws are independent, so there is one chain. `arviz-base` (extra `arviz`) holds the conventions; it needs
Python 3.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reprior import priors
from reprior._version import __version__
from reprior.errors import InputError
from reprior.extras import need
from reprior.sampling import check_x

if TYPE_CHECKING:
    from reprior.adapted import AdaptedPosterior

__all__ = ["to_arviz"]


def to_arviz(
    adapted: AdaptedPosterior, x: Tensor, draws: int = 4_000, seed: int = 0, samples: Tensor | None = None
) -> Any:
    """An ArviZ DataTree of an adapted posterior at one observation.

    Arguments:
        adapted: the adapted posterior.
        x: one observation, with shape (m,) or (1, m).
        draws: the number of draws in each group.
        seed: makes them repeatable.
        samples: adapted draws at x that were made before, with shape (n, d), to be used instead of new ones.

    Returns: an `xarray.DataTree`; write it with its `to_netcdf`.
    """
    from_dict = need("arviz_base", "arviz", "to_arviz").from_dict
    if draws < 1:
        raise InputError(f"draws must be at least 1; got {draws}")
    posterior = adapted.posterior
    x = check_x(x, posterior.x_dim, single=True)
    theta = adapted.sample((draws,), x, seed=seed) if samples is None else samples
    if theta.ndim != 2 or theta.shape[1] != posterior.dim:
        raise InputError(f"samples need shape (n, {posterior.dim}); got {tuple(theta.shape)}")
    groups = {
        "posterior": theta,
        "base_posterior": posterior.sample((draws,), x, seed=seed + 1),
        "prior": priors.sample(posterior.prior, draws, seed + 2),
        "target_prior": adapted.change.draw(draws, seed + 3),
    }
    data: dict[str, Any] = {name: _columns(values, posterior.parameters) for name, values in groups.items()}
    data["sample_stats"] = {"log_r": _chain(adapted.log_r(theta))}
    observed = "x_observed" if "x" in posterior.parameters else "x"
    data["observed_data"] = {observed: x[0].numpy()}
    about = {"method": adapted.method.name, "why": adapted.why, "inference_library": "reprior"}
    return from_dict(
        data,
        name="reprior",
        attrs={"/": {**about, "inference_library_version": __version__, "seed": seed}},
        dims={observed: ["entry"]},
    )


def _columns(theta: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _chain(theta[:, i]) for i, name in enumerate(names)}


def _chain(values: Tensor) -> Any:
    """One chain: shape (n,) -> (1, n)."""
    return values.detach().to("cpu", torch.float64).unsqueeze(0).numpy()
