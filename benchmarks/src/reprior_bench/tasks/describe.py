"""Priors in one short line, for tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

__all__ = ["describe_prior"]


def describe_prior(prior: Any) -> str:
    """A prior as text, e.g. "N((0, 0), diag(0.5, 0.5))"."""
    if isinstance(prior, td.MultivariateNormal):
        return f"N({_vector(prior.loc)}, {_matrix(prior.covariance_matrix)})"
    if isinstance(prior, td.Independent):
        base = prior.base_dist
        if isinstance(base, td.Normal):
            return f"N({_vector(base.loc)}, {_matrix(torch.diag(base.variance))})"
        if isinstance(base, td.Uniform):
            return f"U({_vector(base.low)}, {_vector(base.high)})"
    if isinstance(prior, td.MixtureSameFamily):
        shares = prior.mixture_distribution.probs.tolist()
        component = prior.component_distribution
        if isinstance(component, td.MultivariateNormal):
            covs = component.covariance_matrix.expand(len(shares), -1, -1)
            parts = zip(shares, component.loc, covs, strict=True)
            return " + ".join(f"{w:.3g} N({_vector(m)}, {_matrix(c)})" for w, m, c in parts)
    return type(prior).__name__


def _vector(values: Tensor) -> str:
    if bool((values == values[0]).all()) and len(values) > 2:
        return f"{float(values[0]):.3g} 1"
    return "(" + ", ".join(f"{float(v):.3g}" for v in values) + ")"


def _matrix(cov: Tensor) -> str:
    diagonal = cov.diagonal()
    off = cov - torch.diag(diagonal)
    if bool((off.abs() < 1e-6).all()):
        return "diag(" + ", ".join(f"{float(v):.3g}" for v in diagonal) + ")"
    values = off[~torch.eye(len(cov), dtype=torch.bool)]
    if bool((values - values[0]).abs().max() < 1e-6) and bool((diagonal - diagonal[0]).abs().max() < 1e-6):
        return f"{float(diagonal[0]):.3g} on, {float(values[0]):.3g} off the diagonal"
    return "[" + "; ".join(" ".join(f"{float(v):.3g}" for v in row) for row in cov) + "]"
