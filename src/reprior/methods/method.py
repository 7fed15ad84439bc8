"""What a method is: one way to draw from q(theta | x) with a base that draws from p(theta | x).

A method is one class in one file. It says what its settings are, how it is built (trained, if it needs training), how it
draws, how it is written to a file and read again, which cheaper version serves a calibration, and which other methods
can check it. `reprior.adapt`, `reprior.load` and `reprior.diagnose` ask the method; none of them knows a method's name.

    @reprior.methods.register
    class Mine(Method):
        name = "mine"
        summary = "one line for the list of methods"

        def draw(self, denoiser, n, sampler, generator): ...

A method that guides the reverse diffusion overrides `guide`, which turns the denoiser of p(theta | x) into the denoiser of
q(theta | x); `draw` then runs the sampler with it. A method that works on draws overrides `draw`. Everything inside a
method is in standardised units.
"""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Generator, Tensor, nn

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked
from reprior.errors import InputError, RefusedError

if TYPE_CHECKING:
    from reprior.change import PriorChange
    from reprior.posterior import Posterior

__all__ = ["Drawn", "Method", "Problem"]


@dataclass(frozen=True)
class Problem:
    """What a method is built for.

    Attributes:
        posterior: the base posterior p(theta | x), with its prior and its stored simulations.
        change: log r = log q - log p.
        seed: the same seed builds the same method.
        observed: which entries of x are observed, with shape (m,); the rest is predicted. All if None.
        progress: whether to show progress bars.
        folder: where a long build keeps what it needs to go on after an interruption; None keeps nothing.
    """

    posterior: Posterior
    change: PriorChange
    seed: int = 0
    observed: Tensor | None = None
    progress: bool = False
    folder: Path | None = None


@dataclass(frozen=True)
class Drawn:
    """What a method drew at K observations.

    Attributes:
        theta: standardised draws, with shape (n, K, D); NaN at an observation where the method failed.
        log_w: log prior-ratio weights of the base draws that the method made on its way, with shape (pool, K); None if
            it made none.
        told: what was done at each observation, in one sentence each; () if there is nothing to say.
        failed: the observations (counted from 0) where the method could not draw, each with the reason.
        figures: figures of the method by name, each with one number for each observation.
    """

    theta: Tensor
    log_w: Tensor | None = None
    told: tuple[str, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    figures: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


class Method(ABC):
    """A way to change the prior.

    Attributes:
        name: the name that `adapt(method=...)` takes.
        summary: one line for the list of methods.
        Settings: a frozen dataclass of settings with defaults; None if there is nothing to set.
        presets: named settings.
        corrections: Langevin corrections that the method needs after each step of the sampler.
        has_density: whether the guided denoiser is a fixed, differentiable function, so that its draws have a density.
        pools: whether the method draws many base samples at each observation.
        reweights: whether its draws are resampled base samples that are not moved, so that the weights limit their quality.
        why: one sentence: why this method was chosen.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    Settings: ClassVar[type | None] = None
    presets: ClassVar[Mapping[str, Any]] = {}
    corrections: int = 0
    has_density: bool = True
    pools: bool = False
    reweights: bool = False
    why: str = "asked for"

    def __init__(self, problem: Problem, settings: Any = None):
        self.problem, self.settings = problem, self.checked(settings)

    @property
    def change(self) -> PriorChange:
        """The change of prior."""
        return self.problem.change

    # Build

    @classmethod
    def build(cls, problem: Problem, settings: Any = None) -> Method:
        """The method for a problem: trained, if it needs training; refuses a change that it cannot make."""
        return cls(problem, settings)

    @classmethod
    def checked(cls, settings: Any = None) -> Any:
        """Settings as the user gave them (None, the name of a preset, or the settings), checked."""
        if cls.Settings is None:
            if settings is not None:
                raise InputError(f"method {cls.name!r} takes no settings; got {settings!r}")
            return None
        if settings is None:
            return cls.presets.get("best") or cls.Settings()
        if isinstance(settings, str):
            if settings not in cls.presets:
                allowed = ", ".join([*map(repr, cls.presets), f"a {cls.Settings.__name__}"])
                raise InputError(f"settings {settings!r} are unknown to method {cls.name!r}; allowed: {allowed}")
            return cls.presets[settings]
        if not isinstance(settings, cls.Settings):
            raise InputError(f"method {cls.name!r} takes {cls.Settings.__name__}; got {type(settings).__name__}")
        return settings

    # Draw

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        """The denoiser of q(theta | x) from that of p(theta | x).

        Arguments:
            denoiser: the base with K bound observations.
            generator: for methods that draw (to learn how wide the posterior is, for instance).
        """
        raise RefusedError(f"method {self.name!r} works on samples and gives no guided denoiser")

    def draw(self, denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator) -> Drawn:
        """n draws of q(theta | x) at each of the K bound observations."""
        return Drawn(chunked(self.guide(denoiser, generator), n, sampler, generator))

    def corrected(self) -> Method:
        """A method whose particles this one's log ratio guides, and whose weights undo its errors (`correct="smc"`)."""
        raise RefusedError(
            f"method {self.name!r} has no learned log ratio that could guide particles; use method='smc'"
        )

    # Judge

    def lighter(self, draws: int = 200) -> Method:
        """The same method at less cost, for a calibration that draws at hundreds of observations.

        Arguments:
            draws: base samples at each observation, at most.
        """
        return self

    def second_opinions(self, ess: float) -> list[tuple[str, Method]]:
        """Other cheap ways to the same posterior, each with a name, the most telling first.

        Arguments:
            ess: the relative ESS of the prior-ratio weights at the observation.
        """
        from reprior.methods.registry import find

        if self.change.same:
            return []
        general = find("rejuvenate")
        if self.change.differentiable:
            return [(general.name, general.build(self.problem, general.checked()).lighter(2_000))]
        if ess > 0.05 and not self.pools:
            return [("importance resampling", find("sir").build(self.problem, find("sir").checked()))]
        return []

    # Keep

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a file holds."""
        return {}

    def config(self) -> dict[str, Any]:
        """The plain data that a file holds beside them."""
        return {"settings": asdict(self.settings)} if is_dataclass(self.settings) else {}  # pyright: ignore[reportArgumentType]

    @classmethod
    def rebuild(cls, problem: Problem, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Method:
        """The method from what `config` and `tensors` gave."""
        kind = cls.Settings
        return cls(problem, None if kind is None else kind(**config["settings"]))

    def to(self, posterior: Posterior) -> Method:
        """The same method for the same posterior on another device: its networks are copied there."""
        moved = copy.copy(self)
        moved.problem = replace(self.problem, posterior=posterior)
        for name, value in vars(self).items():
            if isinstance(value, nn.Module):
                setattr(moved, name, copy.deepcopy(value).to(posterior.device))
            elif isinstance(value, Method):
                setattr(moved, name, value.to(posterior))
        return moved

    def because(self, why: str) -> Method:
        """The same method with the reason why it was chosen."""
        copied = copy.copy(self)
        copied.why = why
        return copied
