"""Base networks from their plain-data configuration, for `train` and `reprior.load`."""

from __future__ import annotations

from typing import Any

from torch import nn

from reprior.diffusion.denoiser import Base
from reprior.errors import FileFormatError, InputError
from reprior.networks.embedding import Embedding
from reprior.networks.ensemble import MLPEnsemble
from reprior.networks.mlp import MLPBase, MLPSettings
from reprior.networks.noise import NoiseLaw
from reprior.networks.simformer import SimformerBase, SimformerSettings

__all__ = ["NETWORKS", "build", "default_settings", "rebuild"]

NETWORKS = ("mlp", "simformer")


def default_settings(network: str) -> MLPSettings | SimformerSettings:
    """The default settings of a network, by name."""
    if network == "mlp":
        return MLPSettings()
    if network == "simformer":
        return SimformerSettings()
    raise InputError(f"network {network!r} is unknown; allowed: {', '.join(NETWORKS)}")


def build(dim: int, x_dim: int, settings: MLPSettings | SimformerSettings, embedding: nn.Module | None = None) -> Base:
    """A new base network.

    Arguments:
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        settings: its settings, which say which network it is.
        embedding: the user's own embedding module for x (MLP only).
    """
    if isinstance(settings, MLPSettings):
        return _mlp(dim, x_dim, settings, embedding)
    if not isinstance(settings, SimformerSettings):
        raise InputError(f"settings must be MLPSettings or SimformerSettings; got {type(settings).__name__}")
    if embedding is not None:
        raise InputError("an embedding module goes with network='mlp'; a Simformer has tokens instead")
    return SimformerBase(dim, x_dim, settings)


def rebuild(config: dict[str, Any], embedding: nn.Module | None = None, estimator: Any = None) -> Base:
    """The network that `Base.config` described, with fresh weights.

    Arguments:
        config: the plain data.
        embedding: the user's own embedding module, where the base has one.
        estimator: an sbi posterior or estimator, where the base is one that cannot be rebuilt from plain data.
    """
    if config["network"] == "sbi":
        from reprior.integrations.sbi_rebuild import rebuild as rebuild_sbi

        return rebuild_sbi(config, embedding, estimator)
    settings = dict(config["settings"])
    if config["network"] == "mlp":
        if config["own_embedding"] and embedding is None:
            raise InputError("this posterior uses your own embedding module: load(path, embedding=module) needs it")
        settings["embedding"] = Embedding(**settings["embedding"])
        settings["law"] = NoiseLaw(**settings["law"])
        own = embedding if config["own_embedding"] else None
        return _mlp(config["dim"], config["x_dim"], MLPSettings(**settings), own)
    if config["network"] == "simformer":
        return SimformerBase(config["dim"], config["x_dim"], SimformerSettings.from_config(settings))
    raise FileFormatError(f"the file holds a network {config['network']!r}; known: {', '.join(NETWORKS)}")


def _mlp(dim: int, x_dim: int, settings: MLPSettings, embedding: nn.Module | None) -> Base:
    kind = MLPBase if settings.members == 1 else MLPEnsemble
    return kind(dim, x_dim, settings, embedding)
