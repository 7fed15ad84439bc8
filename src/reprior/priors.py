"""Priors: drawing from them with a seed, their log-densities, and priors as plain data.

A prior is anything with the two methods of a torch ``Distribution`` of event shape (d,): ``sample((n,))`` and
``log_prob(theta)``. `as_prior` wraps lists of 1-D distributions, scipy distributions and ``sbi`` priors.

`to_dict` turns the usual priors into JSON (numbers only, nothing is pickled) and `from_dict` turns them back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

from reprior.errors import InputError

__all__ = ["as_prior", "dim_of", "followed", "from_dict", "log_prob", "mark", "on_cpu", "sample", "seeded", "to_dict"]

# The parameters that rebuild each distribution, in the order of its constructor.
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Normal": ("loc", "scale"),
    "LogNormal": ("loc", "scale"),
    "Uniform": ("low", "high"),
    "Gamma": ("concentration", "rate"),
    "Beta": ("concentration1", "concentration0"),
    "Exponential": ("rate",),
    "HalfNormal": ("scale",),
    "HalfCauchy": ("scale",),
    "Laplace": ("loc", "scale"),
    "Cauchy": ("loc", "scale"),
    "StudentT": ("df", "loc", "scale"),
    "Dirichlet": ("concentration",),
    "MultivariateNormal": ("loc", "scale_tril"),
}

_LEAST_MARK = -1e4

# What sbi's process_prior wraps around a torch distribution, in its attribute `prior`.
_SBI_WRAPPERS = ("OneDimPriorWrapper", "PytorchReturnTypeWrapper")


class Product:
    """The product of independent distributions: the parts of theta are drawn one after the other.

    Arguments:
        parts: distributions with event shape (k,), or scalar ones with batch shape () or (1,).
    """

    def __init__(self, parts: Sequence[Any]):
        if len(parts) == 0:
            raise InputError("a list of priors must hold at least one distribution; got an empty list")
        self.parts = [as_prior(part) for part in parts]
        self.dims = [dim_of(part) for part in self.parts]
        self.event_shape = torch.Size((sum(self.dims),))
        self.batch_shape = torch.Size(())

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return torch.cat([part.sample(torch.Size(sample_shape)) for part in self.parts], dim=-1)

    def log_prob(self, theta: Tensor) -> Tensor:
        blocks = theta.split(self.dims, dim=-1)
        return sum((log_prob(part, b) for part, b in zip(self.parts, blocks, strict=True)), torch.zeros(()))


class ScipyPrior:
    """A frozen scipy distribution with ``rvs`` and ``logpdf`` as a prior.

    Arguments:
        frozen: multivariate, or univariate; parameters that are arrays give independent entries of theta.
    """

    def __init__(self, frozen: Any):
        self.frozen = frozen
        self.univariate = hasattr(frozen, "ppf")
        self.event_shape = torch.atleast_1d(torch.as_tensor(frozen.rvs(random_state=0))).shape
        if len(self.event_shape) != 1:
            raise InputError(f"a prior needs draws of shape (d,); this one gives {tuple(self.event_shape)}")
        self.batch_shape = torch.Size(())

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        n = int(torch.Size(sample_shape).numel())
        seed = int(torch.randint(2**31 - 1, ()))
        size = (n, self.event_shape[0]) if self.univariate else n
        draws = torch.as_tensor(self.frozen.rvs(size=size, random_state=seed), dtype=torch.float32)
        return draws.reshape(*sample_shape, self.event_shape[0])

    def log_prob(self, theta: Tensor) -> Tensor:
        flat = theta.detach().cpu().double().reshape(-1, self.event_shape[0]).numpy()
        value = self.frozen.logpdf(flat)
        value = value.sum(-1) if self.univariate else value
        return torch.as_tensor(value, dtype=theta.dtype, device=theta.device).reshape(theta.shape[:-1])


class NumpyPrior:
    """A prior whose log-density autograd cannot follow, as it is computed with numpy.

    Arguments:
        inner: an object with ``sample`` and ``log_prob``.
    """

    def __init__(self, inner: Any):
        self.inner = inner
        self.event_shape = torch.Size((dim_of(inner),))
        self.batch_shape = torch.Size(())

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return torch.as_tensor(self.inner.sample(torch.Size(sample_shape)), dtype=torch.float32)

    def log_prob(self, theta: Tensor) -> Tensor:
        return log_prob(self.inner, theta.detach()).to(theta)


def as_prior(prior: Any) -> Any:
    """A prior with event shape (d,) from what users write.

    Arguments:
        prior: a torch Distribution of event shape (d,) or of batch shape (d,) or () (then made independent), a
            list of such, a frozen scipy distribution, or any object with ``sample`` and ``log_prob``.
    """
    if isinstance(prior, (list, tuple)):
        return Product(prior)
    if type(prior).__name__ == "OneDimPriorWrapper" and hasattr(prior, "prior"):  # it hides a batch shape of its own
        return as_prior(prior.prior)
    if isinstance(prior, td.Distribution):
        if len(prior.event_shape) == 1 and len(prior.batch_shape) == 0:
            return _differentiable(prior)
        if len(prior.event_shape) == 0 and len(prior.batch_shape) == 1:
            return td.Independent(prior, 1)
        if len(prior.event_shape) == 0 and len(prior.batch_shape) == 0:
            return td.Independent(prior.expand((1,)), 1)
        raise InputError(
            f"a prior needs event shape (d,) and no batch shape; {type(prior).__name__} has event shape "
            f"{tuple(prior.event_shape)} and batch shape {tuple(prior.batch_shape)}"
        )
    if hasattr(prior, "rvs") and hasattr(prior, "logpdf"):
        if callable(prior):  # scipy's families are, with their parameters; frozen ones are not
            name = getattr(prior, "name", None) or type(prior).__name__
            raise InputError(f"scipy's {name} has no parameters yet: call it with them, and pass what that gives")
        return ScipyPrior(prior)
    if hasattr(prior, "logpdf") and hasattr(prior, "resample"):
        raise InputError(
            "a kernel density estimate of scipy is no prior here: pass the samples themselves as the target prior, or "
            "lambda theta: torch.as_tensor(kde.logpdf(theta.numpy().T))"
        )
    if callable(getattr(prior, "sample", None)) and callable(getattr(prior, "log_prob", None)):
        return _differentiable(prior)
    raise InputError(
        "a prior is a torch Distribution, a list of them, a frozen scipy distribution, or an object with sample "
        f"and log_prob; got {type(prior).__name__}"
    )


def _differentiable(prior: Any) -> Any:
    """The prior, or, if its log-density fails under autograd, one that takes what autograd follows."""
    if type(prior).__module__.startswith("torch."):
        return prior
    some = sample(prior, 2, seed=0).float()
    return prior if followed(lambda theta: log_prob(prior, theta), some) else NumpyPrior(prior)


def followed(log_density: Callable[[Tensor], Any], theta: Tensor) -> bool:
    """Whether a log-density takes a tensor that autograd follows; one of numpy or scipy does not.

    Arguments:
        log_density: the log-density, which works without autograd.
        theta: parameters to try it on, with shape (n, d).
    """
    with torch.enable_grad():
        try:
            log_density(theta.detach().clone().requires_grad_(True))
        except (RuntimeError, TypeError):
            return False
    return True


def on_cpu(prior: Any) -> Any:
    """The same prior on the CPU, where reprior keeps simulations and draws."""
    device = sample(prior, 1, seed=0).device
    if device.type == "cpu":
        return prior
    plain = from_dict(to_dict(prior))
    if plain is None:
        raise InputError(f"the prior ({type(prior).__name__}) draws on {device}: build it on the CPU")
    return as_prior(plain)


def dim_of(prior: Any) -> int:
    """The dimension d of theta under a prior."""
    shape = getattr(prior, "event_shape", None)
    if shape is not None and len(shape) == 1:
        return int(shape[0])
    return int(sample(prior, 1, seed=0).shape[-1])


def sample(prior: Any, n: int, seed: int) -> Tensor:
    """Draws n parameters from a prior, the same for the same seed; the global random state is left alone.

    Returns: theta, with shape (n, d).
    """
    prior = as_prior(prior) if isinstance(prior, (list, tuple)) else prior
    with seeded(seed), torch.no_grad():
        theta = torch.as_tensor(prior.sample(torch.Size((n,))))
    return theta if theta.ndim == 2 else theta.reshape(n, -1)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Sets the global seeds of torch, numpy and random, then puts their states back."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def log_prob(prior: Any, theta: Tensor) -> Tensor:
    """log p(theta), and -inf outside the support, whether or not the prior validates its arguments.

    Arguments:
        theta: parameters, with shape (*, d).

    Returns: the log-density, with shape (*).
    """
    prior = as_prior(prior) if isinstance(prior, (list, tuple)) else prior
    if theta.numel() == 0:
        return theta.new_zeros(theta.shape[:-1])
    # Many priors, sbi's among them, take rows only.
    return _log_prob_of_rows(prior, theta.reshape(-1, theta.shape[-1])).reshape(theta.shape[:-1])


def _log_prob_of_rows(prior: Any, theta: Tensor) -> Tensor:
    if isinstance(prior, td.MixtureSameFamily):
        return _mixture_log_prob(prior, theta)
    if isinstance(prior, td.Independent) and isinstance(prior.base_dist, td.MixtureSameFamily):
        return _mixture_log_prob(prior.base_dist, theta).sum(-1)
    try:
        support = prior.support
    except (AttributeError, NotImplementedError):
        support = None
    if support is None:
        return _as_log_density(prior.log_prob(theta), theta)
    inside = _inside(prior, theta)
    if bool(inside.all()):
        return _as_log_density(prior.log_prob(theta), theta)
    out = theta.new_full(theta.shape[:-1], -torch.inf)
    if bool(inside.any()):
        out[inside] = _as_log_density(prior.log_prob(theta[inside]), theta[inside])
    return out


def _inside(prior: Any, theta: Tensor) -> Tensor:
    """Which rows of theta lie in the support, with shape (n,)."""
    if isinstance(prior, td.Independent):
        return _inside(prior.base_dist, theta)
    inside = prior.support.check(theta)
    inside = inside.reshape(len(theta), -1).all(-1)
    if isinstance(prior, td.TransformedDistribution):  # torch takes a shifted Gamma's support to be the whole line
        below: Any = theta
        for transform in reversed(prior.transforms):
            below = transform.inv(below)
        inside = inside & _inside(prior.base_dist, below)
    return inside


def _mixture_log_prob(prior: td.MixtureSameFamily, theta: Tensor) -> Tensor:
    # Each component counts where its own support is; torch would ask for a theta in the supports of all.
    component = prior.component_distribution
    each = theta.unsqueeze(-1 - len(prior.event_shape))
    inside = component.support.check(each)  # pyright: ignore[reportOptionalMemberAccess]
    if not bool(inside.all()):
        with torch.random.fork_rng():
            allowed = component.sample().to(theta)
        mask = inside.unsqueeze(-1) if len(prior.event_shape) == 1 else inside
        each = torch.where(mask, each, allowed)
    logs = component.log_prob(each).masked_fill(~inside, -torch.inf)
    return torch.logsumexp(logs + torch.log_softmax(prior.mixture_distribution.logits, -1), -1)


def _as_log_density(value: Tensor, theta: Tensor) -> Tensor:
    value = torch.as_tensor(value, dtype=theta.dtype, device=theta.device)
    # A part with a scalar event in an event of size one gives a trailing 1.
    if value.shape != theta.shape[:-1]:
        value = value.reshape(theta.shape[:-1])
    return value.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def mark(log_density: Tensor) -> Tensor:
    """What tells one log-density, known up to a constant, from another: values at fixed points, less the largest.

    Arguments:
        log_density: the values, with shape (n,).
    """
    value = log_density.detach().float()
    return (value - value.max()).nan_to_num(nan=_LEAST_MARK, neginf=_LEAST_MARK).clamp(min=_LEAST_MARK)


def to_dict(prior: Any) -> dict[str, Any] | None:
    """A prior as JSON-ready data, or None where plain numbers cannot hold it (a user's own object)."""
    name = type(prior).__name__
    if isinstance(prior, Product) or (name == "MultipleIndependent" and hasattr(prior, "dists")):
        parts = [to_dict(as_prior(part)) for part in getattr(prior, "parts", getattr(prior, "dists", []))]
        return None if any(part is None for part in parts) else {"type": "Product", "parts": parts}
    if name in _SBI_WRAPPERS and hasattr(prior, "prior"):
        return to_dict(prior.prior)
    if isinstance(prior, td.Independent):  # includes sbi's BoxUniform
        base = to_dict(prior.base_dist)
        n = prior.reinterpreted_batch_ndims
        return None if base is None else {"type": "Independent", "base": base, "ndims": n}
    if isinstance(prior, td.MixtureSameFamily):
        component = to_dict(prior.component_distribution)
        logits = prior.mixture_distribution.logits.detach().cpu().tolist()
        return None if component is None else {"type": "Mixture", "logits": logits, "component": component}
    if isinstance(prior, td.Distribution) and name in _PARAMETERS and type(prior) is getattr(td, name):
        values = {k: getattr(prior, k).detach().cpu().tolist() for k in _PARAMETERS[name]}
        return {"type": name, "parameters": values}
    return None


def from_dict(data: dict[str, Any] | None) -> Any | None:
    """The prior that `to_dict` wrote; None for None."""
    if data is None:
        return None
    name = data.get("type")
    if name == "Product":
        return Product([from_dict(part) for part in data["parts"]])
    if name == "Independent":
        base = from_dict(data["base"])
        assert isinstance(base, td.Distribution)
        return td.Independent(base, int(data["ndims"]), validate_args=False)
    if name == "Mixture":
        component = from_dict(data["component"])
        assert isinstance(component, td.Distribution)
        return td.MixtureSameFamily(td.Categorical(logits=torch.tensor(data["logits"])), component, validate_args=False)
    if name in _PARAMETERS:
        values = {k: torch.tensor(v) for k, v in data["parameters"].items()}
        return getattr(td, name)(**values, validate_args=False)
    raise InputError(f"unknown prior type {name!r}; known: Product, Independent, Mixture, {', '.join(_PARAMETERS)}")
