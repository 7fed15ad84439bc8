"""Weighted score matching (WSM): a correction of the score, learned by denoising weighted by r.

The correction u(theta_t, x, t) minimises E[ r(theta_0) || mean + c u - theta_0 ||^2 / c^2 ], with mean the base's denoised
mean and c = s / sqrt(1 + s^2), the scale of what remains to be learned; at the optimum mean + c u = E_q[theta_0 | z, x].
In score terms the weight is (sigma_t / alpha_t)^2 up to a factor: the unweighted loss is dominated by the lowest noise.
Weighted score matching is a competitor in "Guidance for Prior Change via Density Ratio Estimation" (Zang, Liu, Lin);
denoising score matching is Vincent (2011).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from reprior.diffusion.denoiser import Denoiser, Wrapped, features_of, widen
from reprior.diffusion.sampler import ROWS
from reprior.methods import Method, Problem
from reprior.methods.guided import check_learned
from reprior.methods.learned import BEST, PAPER, RatioSettings
from reprior.methods.learned.rows import NOISY_COPIES, join, mean_over_parts, noisy_rows
from reprior.methods.learned.training_set import TrainingSet, make_training_set
from reprior.networks.fit import FitResult, fit
from reprior.networks.ratio import RatioMLP
from reprior.seeds import seeded

__all__ = ["WeightedScoreMatching", "learn_correction"]


class WeightedScoreMatching(Method):
    """Guidance by a learned correction of the denoised mean: weighted score matching (Zang, Liu, Lin).

    Arguments:
        problem: the base posterior and the change of prior.
        settings: how it was trained.
        model: the trained correction.
        notes: figures of the training: the relative ESS of the weights, seconds, observed entries of x.
    """

    name = "wsm"
    summary = "learned correction of the score, by weighted denoising"
    Settings = RatioSettings
    presets: ClassVar[Mapping[str, RatioSettings]] = {"best": BEST, "paper": PAPER}
    settings: RatioSettings

    def __init__(self, problem: Problem, settings: RatioSettings, model: RatioMLP, notes: Mapping[str, Any]):
        super().__init__(problem, settings)
        self.model, self.notes = model, dict(notes)

    @classmethod
    def build(cls, problem: Problem, settings: RatioSettings | None = None) -> Method:
        chosen = settings or BEST
        data = make_training_set(problem, chosen, problem.seed)
        model, result = learn_correction(problem, chosen, data)
        observed = None if problem.observed is None else problem.observed.tolist()
        return cls(problem, chosen, model, {"training_ess": data.ess, "seconds": result.seconds, "observed": observed})

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        check_learned(self.name, denoiser, self.model.dim, self.notes["observed"])
        with torch.no_grad():
            features = self.problem.posterior.base.features(denoiser.x)
            code = self.model.encode(widen(features, self.model.x_features))
        return _Corrected(denoiser, self.model, code, self.settings.largest_noise)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    def config(self) -> dict[str, Any]:
        sizes = {"dim": self.model.dim, "x_features": self.model.x_features}
        return {"settings": asdict(self.settings), **sizes, "notes": self.notes}

    @classmethod
    def rebuild(cls, problem: Problem, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Method:
        settings = RatioSettings.from_dict(config["settings"])
        model = RatioMLP(config["dim"], config["x_features"], config["dim"], settings.network)
        model.load_state_dict(dict(tensors))
        return cls(problem, settings, model.requires_grad_(False).eval(), config["notes"])


class _Corrected(Wrapped):
    def __init__(self, inner: Denoiser, model: RatioMLP, code: Tensor, largest_noise: float):
        super().__init__(inner)
        self.s_max = min(inner.s_max, largest_noise)
        self.model, self.code = model, code

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        return self.inner.mean(z, s) + s / torch.sqrt(1 + s**2) * self.model(z, s, self.code)


def learn_correction(problem: Problem, settings: RatioSettings, data: TrainingSet) -> tuple[RatioMLP, FitResult]:
    """Learns the correction.

    Arguments:
        problem: the base posterior, the change of prior and the seed.
        settings: how noise is drawn, the network and its training.
        data: the training set.
    """
    posterior, seed, device = problem.posterior, problem.seed, problem.posterior.device
    generator = torch.Generator().manual_seed(seed + 1)
    rows = join([noisy_rows(posterior, data, settings.time, True, generator) for _ in range(NOISY_COPIES)])
    features = features_of(posterior.base, data.x, ROWS)
    dim = data.theta.shape[1]
    with seeded(seed):
        model = RatioMLP(dim, features.shape[1], dim, settings.network).to(device)
    is_held = torch.zeros(len(data.theta), dtype=torch.bool)
    is_held[data.split(settings.training.validation)[0]] = True
    held, kept = is_held[rows.row].nonzero()[:, 0], (~is_held[rows.row]).nonzero()[:, 0]

    def value(module: nn.Module, some: Tensor) -> Tensor:
        row = rows.row[some]
        code = module.encode(features[data.index[row].to(device)])  # pyright: ignore[reportCallIssue]
        z, s = rows.z[some].to(device), rows.s[some].to(device)
        wanted = (data.theta[row] - rows.mean[some]).to(device) / (s / torch.sqrt(1 + s**2))
        error = (module(z, s, code) - wanted).square().mean(-1)
        return (data.weight[row].to(device) * error).mean()

    result = fit(
        model,
        lambda module, i, _: value(module, kept[i]),
        lambda module: mean_over_parts(lambda part: value(module, part), held),
        len(kept),
        settings.training,
        seed,
        label="weighted score",
        progress=problem.progress,
    )
    return model.requires_grad_(False), result
