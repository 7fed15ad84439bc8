"""Simulations: parameters theta, data x and the prior p they were drawn from, kept together.

`Simulations.create` checks the output of a simulator. Rows with NaN or infinity are dropped and counted. If there are too
many of them the simulations are refused, because the remaining rows do not follow the prior but p(theta | the simulator
succeeds). NaN in x can also mean "not observed" (`missing="keep"`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior import io, priors
from reprior.arrays import as_array
from reprior.errors import InputError

__all__ = ["Simulations", "coarse_columns"]

_KIND = "simulations"
_COMPARED = 5_000  # simulations that are compared with as many draws of the prior: they show a shift of .2 sd
_P_VALUE = 1e-9  # threshold of that test: with 10 parameters, one false warning in 10^8 trainings
_STEPS = 1_000.0  # standard deviation of a column in rounding steps of single precision: rounding is then .1 % of it
_OUTSIDE = 0.01  # fraction of theta outside the prior's support that may be rounding at an edge


@dataclass(frozen=True, eq=False)
class Simulations:
    """Pairs (theta, x) and their prior. Use `Simulations.create` to check raw arrays.

    Arguments:
        theta: Parameters, with shape (n, d).
        x: Data, with shape (n, m); NaN means a missing value.
        prior: The prior p that theta was drawn from, or None where it is unknown.
        parameters: The d names of the parameters.
        dropped: Number of rows that were dropped for NaN or infinity.
    """

    theta: Tensor
    x: Tensor
    prior: Any
    parameters: tuple[str, ...]
    dropped: int = 0

    def __post_init__(self) -> None:
        _check_shapes(self.theta, self.x)
        if len(self.parameters) != self.theta.shape[1]:
            raise InputError(
                f"parameters is {list(self.parameters)}: theta has {self.theta.shape[1]} columns, "
                "and each needs one name."
            )
        if len(set(self.parameters)) != len(self.parameters):
            raise InputError(f"parameters is {list(self.parameters)}: names must differ.")

    @classmethod
    def create(
        cls,
        theta: Any,
        x: Any,
        prior: Any = None,
        parameters: Sequence[str] | None = None,
        max_bad_fraction: float = 0.1,
        missing: str = "drop",
    ) -> Simulations:
        """Checks raw simulations, drops unusable rows (with a warning) and keeps the rest in float32.

        Arguments:
            theta: Parameters, with shape (n, d): tensor, array, table or nested list.
            x: Data, with shape (n, m), likewise.
            prior: The prior p, as `reprior.priors.as_prior` takes it, or None.
            parameters: Names of the d parameters; None names them theta_1, ..., theta_d.
            max_bad_fraction: Fraction of unusable rows above which the simulations are refused, in [0, 1).
            missing: What NaN in x means. "drop": a failed simulation. "keep": a value that was not observed;
                then only rows with infinity, with nothing observed, or with unusable theta are dropped.
        """
        if missing not in ("drop", "keep"):
            raise InputError(f'missing is {missing!r}: it must be "drop" or "keep".')
        if not 0 <= max_bad_fraction < 1:
            raise InputError(f"max_bad_fraction is {max_bad_fraction}: it must lie in [0, 1).")
        theta, x = (torch.as_tensor(as_array(v)).detach().cpu() for v in (theta, x))
        _check_shapes(theta, x)
        _check_precision(theta, x)
        theta, x = theta.to(torch.float32), x.to(torch.float32)
        if prior is not None:
            prior = priors.on_cpu(priors.as_prior(prior))
            if priors.dim_of(prior) != theta.shape[1]:
                raise InputError(f"prior has dimension {priors.dim_of(prior)}: theta has {theta.shape[1]} columns.")

        good = theta.isfinite().all(dim=1)
        if missing == "keep":
            good &= ~x.isinf().any(dim=1) & ~x.isnan().all(dim=1)
        else:
            good &= x.isfinite().all(dim=1)
        dropped = int((~good).sum())
        _report_dropped(dropped, len(theta), max_bad_fraction)
        names = tuple(parameters) if parameters is not None else _default_names(theta.shape[1])
        simulations = cls(theta[good], x[good], prior, names, dropped)
        _check_prior(simulations)
        return simulations

    def __len__(self) -> int:
        return len(self.theta)

    def __repr__(self) -> str:
        lost = f", {self.dropped:,} dropped" if self.dropped else ""
        return f"Simulations({len(self):,} of ({', '.join(self.parameters)}) and x of {self.x.shape[1]}{lost})"

    @property
    def has_missing(self) -> bool:
        """Whether x holds missing values (NaN)."""
        return bool(self.x.isnan().any())

    def warn_if_not_drawn(self, hint: str) -> None:
        """Warns where theta does not look like draws of the prior (a Kolmogorov-Smirnov test for each parameter).

        Arguments:
            hint: what may be the reason; it ends the warning.
        """
        from scipy.stats import ks_2samp

        draws = priors.sample(self.prior, _COMPARED, seed=0)
        # A random subset: rows of several rounds, or campaigns, come one after the other.
        some = self.theta[torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:_COMPARED]]
        for i, name in enumerate(self.parameters):
            test = ks_2samp(some[:, i].numpy(), draws[:, i].numpy(), method="asymp")
            p_value = float(test.pvalue)  # pyright: ignore
            if p_value < _P_VALUE:
                warnings.warn(f"{name} of the simulations is not distributed as under the prior. {hint}", stacklevel=3)
                return

    def subset(self, index: Tensor) -> Simulations:
        """The simulations of some rows.

        Arguments:
            index: Row numbers, with shape (k,), or a mask, with shape (n,).
        """
        return replace(self, theta=self.theta[index], x=self.x[index])

    def split(self, fraction: float, seed: int = 0) -> tuple[Simulations, Simulations]:
        """Splits the rows at random into two parts without overlap.

        Arguments:
            fraction: Fraction of rows in the first part, in (0, 1).
            seed: Seed of the split.
        """
        n = len(self)
        first = round(fraction * n)
        if not 0 < fraction < 1 or not 0 < first < n:
            raise InputError(f"fraction is {fraction}: it must leave at least one of {n} rows on each side.")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).to(self.theta.device)
        return self.subset(order[:first]), self.subset(order[first:])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the simulations to one file and returns its path.

        A prior of a user's own class cannot be written as plain data: a warning says so, and `load` takes it.

        Arguments:
            path: Where to write; `.safetensors` is appended when it has no suffix.
        """
        prior = priors.to_dict(self.prior)
        if prior is None and self.prior is not None:
            warnings.warn(
                f"the prior ({type(self.prior).__name__}) cannot be written as plain data and is not in the "
                "file: pass it to Simulations.load(path, prior=...)",
                stacklevel=2,
            )
        meta = {"prior": prior, "parameters": list(self.parameters), "dropped": self.dropped}
        return io.write(path, _KIND, {"theta": self.theta, "x": self.x}, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str], prior: Any = None) -> Simulations:
        """Reads the simulations that `save` wrote.

        Arguments:
            path: The file.
            prior: The prior, needed where the file could not hold it; otherwise it replaces the file's.
        """
        file = io.read(path, _KIND)
        prior = priors.from_dict(file.meta["prior"]) if prior is None else priors.as_prior(prior)
        return cls(
            theta=file.tensors["theta"],
            x=file.tensors["x"],
            prior=prior,
            parameters=tuple(file.meta["parameters"]),
            dropped=file.meta["dropped"],
        )


def _default_names(d: int) -> tuple[str, ...]:
    return tuple(f"theta_{i + 1}" for i in range(d))


def _check_shapes(theta: Tensor, x: Tensor) -> None:
    for name, value in (("theta", theta), ("x", x)):
        if value.ndim == 2 and value.shape[1] > 0:
            continue
        hint = ""
        if value.ndim == 1:
            hint = f" For one column, pass {name}[:, None]."
        elif value.ndim > 2:
            hint = f" Flatten each row: {name}.reshape(len({name}), -1)."
        raise InputError(f"{name} has shape {tuple(value.shape)}: it must be (n, columns).{hint}")
    if len(theta) != len(x):
        raise InputError(f"theta has {len(theta)} rows and x has {len(x)}: they must be pairs.")
    if len(theta) == 0:
        raise InputError("theta and x have no rows: at least one simulation is needed.")


def _report_dropped(dropped: int, n: int, limit: float) -> None:
    if dropped == 0:
        return
    fraction = dropped / n
    if fraction > limit:
        raise InputError(
            f"{dropped} of {n} simulations ({fraction:.1%}) hold NaN or infinity; max_bad_fraction allows "
            f'{limit:.1%}. Mend the simulator or raise max_bad_fraction; if NaN means "not observed", train '
            "network='simformer', or pass missing=\"keep\" where simulations are made."
        )
    warnings.warn(
        f"dropped {dropped} of {n} simulations ({fraction:.1%}) with NaN or infinity: the rest follow the prior "
        "given that the simulator succeeds",
        stacklevel=3,
    )


def _check_prior(simulations: Simulations) -> None:
    """Refuses a prior that cannot have produced theta; a few rows at the edge may be rounding."""
    if simulations.prior is None:
        return
    outside = float((priors.log_prob(simulations.prior, simulations.theta) == -torch.inf).float().mean())
    if outside > _OUTSIDE:
        raise InputError(
            f"{outside:.1%} of theta have zero density under the prior: pass the prior that theta was drawn from."
        )


def _check_precision(theta: Tensor, x: Tensor) -> None:
    """Checks that columns vary, and by more than the rounding of single precision.

    Refuses a parameter that does not. Warns of a column of data that varies by less than rounding.
    """
    for k in range(theta.shape[1] if len(theta) > 1 else 0):
        if bool((theta[:, k] == theta[0, k]).all()):
            raise InputError(
                f"column {k} of theta is {float(theta[0, k]):.7g} in every row: leave it out of theta and prior"
            )
    for name, values in (("theta", theta), ("x", x)):
        looked_at = values.dtype == torch.float64 or (name == "theta" and values.is_floating_point())
        columns = coarse_columns(values) if looked_at else []
        if not columns:
            continue
        k = columns[0]
        column = values[:, k][values[:, k].isfinite()]
        message = (
            f"column {k} of {name} lies about {float(column.mean()):.10g} and varies by {float(column.std()):.3g}: single "
            f"precision rounds that away. Subtract an offset from it{_others(columns)}"
        )
        if name == "theta":
            raise InputError(f"{message} (and from the prior)")
        warnings.warn(message, stacklevel=3)


def coarse_columns(values: Tensor) -> list[int]:
    """The columns that vary, but by too little for single precision."""
    found = []
    for k in range(values.shape[1]):
        column = values[:, k][values[:, k].isfinite()]
        if len(column) > 1:
            resolution = torch.finfo(torch.float32).eps * float(column.abs().max())
            found += [k] if 0 < float(column.std()) < _STEPS * resolution else []
    return found


def _others(columns: list[int]) -> str:
    return f" (and from columns {', '.join(map(str, columns[1:]))})" if len(columns) > 1 else ""
