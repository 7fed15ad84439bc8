"""Priors: reading what users give, drawing with a seed, log-densities, and priors as plain data.

A prior is anything with the two methods of a torch ``Distribution`` of event shape (d,): ``sample((n,))`` and
``log_prob(theta)``. `as_prior` wraps lists of 1-D distributions, scipy distributions and ``sbi`` priors.

Three representations as plain data: `to_dict` turns the usual priors into JSON (numbers only, nothing is pickled), and
`from_dict` turns them back. `fingerprint` identifies any log-density in a file. `key` identifies any prior in the key of a
stored result (`reprior.store`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from reprior import prior_density
from reprior.errors import InputError
from reprior.prior_density import fingerprint, followed, same_fingerprint
from reprior.seeds import seeded

__all__ = [
    "NumpyPrior",
    "Product",
    "ScipyPrior",
    "as_prior",
    "dim_of",
    "fingerprint",
    "followed",
    "from_dict",
    "key",
    "log_prob",
    "on_cpu",
    "same_fingerprint",
    "sample",
    "to_dict",
]

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

_KEY_DRAWS = 8  # draws by which `key` identifies a user's own prior: two different priors hardly agree on all of them

# What sbi's process_prior wraps around a torch distribution, in its attribute `prior`.
_SBI_WRAPPERS = ("OneDimPriorWrapper", "PytorchReturnTypeWrapper")


class Product:
    """The product of independent distributions, each for its own part of theta.

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
    if type(prior).__name__ == "OneDimPriorWrapper" and hasattr(prior, "prior"):  # sbi's, of one parameter
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
    """The prior, wrapped where its log-density fails under autograd."""
    if type(prior).__module__.startswith("torch."):
        return prior
    some = sample(prior, 2, seed=0).float()
    return prior if followed(lambda theta: log_prob(prior, theta), some) else NumpyPrior(prior)


def on_cpu(prior: Any) -> Any:
    """The same prior on the CPU, where reprior keeps simulations and draws."""
    device = sample(prior, 1, seed=0).device
    if device.type == "cpu":
        return prior
    plain = from_dict(to_dict(prior))
    if plain is None:
        raise InputError(f"the prior ({type(prior).__name__}) draws on {device}: build it on the CPU")
    return as_prior(plain)


def log_prob(prior: Any, theta: Tensor) -> Tensor:
    """log p(theta), and -inf outside the support.

    Arguments:
        prior: a prior, or a list of priors.
        theta: parameters, with shape (*, d).

    Returns: the log-density, with shape (*).
    """
    return prior_density.log_prob(as_prior(prior) if isinstance(prior, (list, tuple)) else prior, theta)


def dim_of(prior: Any) -> int:
    """The dimension d of theta under a prior."""
    shape = getattr(prior, "event_shape", None)
    if shape is not None and len(shape) == 1:
        return int(shape[0])
    return int(sample(prior, 1, seed=0).shape[-1])


def sample(prior: Any, n: int, seed: int) -> Tensor:
    """Draws n parameters from a prior, the same for the same seed; the global random state is left alone.

    Arguments:
        prior: a prior, or a list of priors.
        n: number of draws.
        seed: seed of the draws.

    Returns: theta, with shape (n, d).
    """
    prior = as_prior(prior) if isinstance(prior, (list, tuple)) else prior
    with seeded(seed), torch.no_grad():
        theta = torch.as_tensor(prior.sample(torch.Size((n,))))
    return theta if theta.ndim == 2 else theta.reshape(n, -1)


def key(prior: Any) -> Any:
    """Plain data that identify a prior, for the key of a result that depends on it (`reprior.store`).

    It is the prior itself where plain numbers can hold it. A user's own object is identified by some of its draws and
    their log-density, rounded to three digits so that machines agree.

    Arguments:
        prior: a prior, as `as_prior` gives it.
    """
    held = to_dict(prior)
    if held is not None:
        return held
    theta = sample(prior, _KEY_DRAWS, seed=0)
    return [f"{value:.2e}" for value in [*theta.flatten().tolist(), *log_prob(prior, theta).tolist()]]


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
