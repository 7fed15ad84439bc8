"""sbi estimators as plain data, so that files hold tensors and JSON and nothing is pickled.

`describe` reads the architecture of an estimator whose network is one of sbi's own (mlp, ada_mlp, transformer and its
cross-attention form). It builds the network again, loads the weights and compares the outputs. If they differ, the network
is marked as not rebuildable, and `reprior.load` needs the estimator as an argument; its weights do not matter, as they
come from the file. The same holds for an embedding net of the user's.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from reprior.errors import InputError
from reprior.integrations.sbi_base import SbiBase
from reprior.seeds import seeded

__all__ = ["describe", "estimator_of", "rebuild"]

ESTIMATORS: dict[str, tuple[str, ...]] = {
    "VEScoreEstimator": ("sigma_min", "sigma_max", "t_min", "t_max"),
    "VPScoreEstimator": ("beta_min", "beta_max", "t_min", "t_max"),
    "SubVPScoreEstimator": ("beta_min", "beta_max", "t_min", "t_max"),
    "FlowMatchingEstimator": ("noise_scale", "gaussian_baseline"),
}


def describe(base: SbiBase) -> dict[str, Any]:
    """The plain data of a base; ``net`` is None where the network cannot be rebuilt from it."""
    inner = base.estimator
    kind = type(inner).__name__
    config: dict[str, Any] = {
        "network": "sbi",
        "unit": base.unit,
        "narrowest": base.narrowest,
        "takes_missing": base.takes_missing,
        "x_shape": list(base.x_shape),
        "estimator": kind,
        "arguments": {name: getattr(inner, name) for name in ESTIMATORS.get(kind, ())},
        "dim": base.dim,
        "code_shape": list(inner.condition_shape),
        "moments_shape": list(inner.mean_0.shape),
        "embedding": _describe_embedding(base.embedding),
        "net": _describe_net(inner.net) if kind in ESTIMATORS else None,
    }
    if config["net"] is not None and not _same(base, config):
        config["net"] = None
    return config


def rebuild(config: dict[str, Any], embedding: nn.Module | None, estimator: Any) -> SbiBase:
    """The base that `describe` described, before its weights are loaded.

    Arguments:
        config: the plain data.
        embedding: the user's own embedding net, where there was one.
        estimator: an sbi posterior or estimator of the same architecture, where the network cannot be rebuilt.
    """
    if estimator is not None:
        return _base_around(estimator_of(estimator), config)
    if config["net"] is None:
        raise InputError(
            f"the network of this sbi posterior ({config['estimator']}) is not one of sbi's own: load(path, "
            "estimator=...) needs an sbi posterior or estimator of the same architecture (its weights do not matter)"
        )
    own = config["embedding"]["own"]
    if own is not None and embedding is None:
        raise InputError(
            f"this sbi posterior has an embedding net ({own}): load(path, embedding=module) needs one of the same "
            "architecture (its weights do not matter)"
        )
    return _base_around(_build_estimator(config, embedding), config)


def _base_around(estimator: Any, config: dict[str, Any]) -> SbiBase:
    base = SbiBase(estimator, config["unit"], config["narrowest"])
    base.takes_missing = config["takes_missing"]
    return base


def estimator_of(source: Any) -> Any:
    """The estimator of an sbi posterior, or the estimator itself."""
    from sbi.neural_nets.estimators import ConditionalVectorFieldEstimator

    found = getattr(source, "vector_field_estimator", source)
    if not isinstance(found, ConditionalVectorFieldEstimator):
        raise InputError(f"an NPSE or FMPE posterior or estimator of sbi is needed; got {type(source).__name__}")
    return found


def _describe_embedding(module: nn.Module) -> dict[str, Any]:
    """Whether x is z-scored first (and the shape of the moments), and the name of the user's own net, if any."""
    from sbi.utils.sbiutils import Standardize

    scored = None
    if isinstance(module, nn.Sequential) and len(module) == 2 and isinstance(module[0], Standardize):
        scored, module = list(module[0]._mean.shape), module[1]  # pyright: ignore
    return {"z_score": scored, "own": None if isinstance(module, nn.Identity) else type(module).__name__}


def _build_embedding(config: dict[str, Any], own: nn.Module | None) -> nn.Module:
    from sbi.utils.sbiutils import Standardize

    module = nn.Identity() if own is None else copy.deepcopy(own)
    if config["z_score"] is None:
        return module
    shape = config["z_score"]
    return nn.Sequential(Standardize(torch.zeros(shape), torch.ones(shape)), module)


def _describe_net(net: nn.Module) -> dict[str, Any] | None:
    """The constructor arguments of one of sbi's own networks; None for any other."""
    from sbi.neural_nets.net_builders import vector_field_nets as nets

    if type(net) is nets.VectorFieldMLP:
        return {
            "type": "VectorFieldMLP",
            "input_dim": net.input_layer.in_features,
            "condition_dim": net.condition_layer.in_features,
            "hidden_features": net.input_layer.out_features,
            "num_layers": len(net.layers),
            "layer_norm": net.layer_norm,
            "skip_connections": net.skip_connections,
            "activation": type(net.activation).__name__,
            **_describe_time(net.time_emb),
        }
    if type(net) is nets.VectorFieldAdaMLP and len(net.layers) > 2:
        block = net.layers[1].block
        return {
            "type": "VectorFieldAdaMLP",
            "input_dim": net.layers[0].in_features,
            "condition_dim": _condition_dim(net.global_mlp),
            "condition_emb_dim": net.global_mlp.output_layer.out_features,
            "hidden_features": net.layers[0].out_features,
            "num_layers": len(net.layers) - 2,
            "num_intermediate_mlp_layers": net.global_mlp.num_intermediate_layers,
            "adamlp_ratio": block[0].out_features // block[0].in_features,  # pyright: ignore
            "activation": type(block[1]).__name__,  # pyright: ignore
            **_describe_time(net.global_mlp.time_emb),
        }
    if type(net) is nets.VectorFieldTransformer and len(net.blocks) > 0:
        block, sequence = net.blocks[0], net.is_x_emb_seq
        attention = block.self_attn if sequence else block.attn
        return {
            "type": "VectorFieldTransformer",
            "input_dim": net.input_dim,
            "condition_dim": block.cond_proj.in_features if sequence else _condition_dim(net.global_mlp),  # pyright: ignore
            "hidden_features": net.hidden_features,
            "num_layers": len(net.blocks),
            "num_heads": attention.num_heads,  # pyright: ignore
            "mlp_ratio": block.mlp[0].out_features // block.mlp[0].in_features,  # pyright: ignore
            "is_x_emb_seq": sequence,
            "num_intermediate_mlp_layers": net.global_mlp.num_intermediate_layers,
            "activation": type(block.mlp[1]).__name__,  # pyright: ignore
            **_describe_time(net.global_mlp.time_emb),
        }
    return None


def _condition_dim(mlp: Any) -> int:
    # sbi repeats a short embedding up to the size of the time embedding, so shorter ones give that size.
    return mlp.input_layer.in_features - mlp.time_emb.embed_dim


def _describe_time(module: Any) -> dict[str, Any]:
    from sbi.neural_nets.net_builders.vector_field_nets import SinusoidalTimeEmbedding

    size = {"time_emb_dim": module.embed_dim}
    if isinstance(module, SinusoidalTimeEmbedding):
        return {**size, "time_emb_type": "sinusoidal", "sinusoidal_max_freq": module.max_freq}
    return {**size, "time_emb_type": "random_fourier", "fourier_scale": module.scale}


def _build_net(config: dict[str, Any]) -> nn.Module:
    from sbi.neural_nets.net_builders import vector_field_nets as nets

    arguments = {name: value for name, value in config.items() if name != "type"}
    arguments["activation"] = getattr(nn, arguments["activation"])
    return getattr(nets, config["type"])(**arguments)


def _build_estimator(config: dict[str, Any], own: nn.Module | None) -> Any:
    from sbi.neural_nets import estimators
    from sbi.neural_nets.estimators import score_estimator

    kind = config["estimator"]
    cls = getattr(score_estimator, kind, None) or getattr(estimators, kind)
    shape = config["moments_shape"]
    times = {k: v for k, v in config["arguments"].items() if k in ESTIMATORS[kind]}
    return cls(
        net=_build_net(config["net"]),
        input_shape=torch.Size([config["dim"]]),
        condition_shape=torch.Size(config["x_shape"]),
        embedding_net=_build_embedding(config["embedding"], own),
        mean_0=torch.zeros(shape),
        std_0=torch.ones(shape),
        **times,
    )


@torch.no_grad()
def _same(base: SbiBase, config: dict[str, Any]) -> bool:
    """Whether the rebuilt base has the same denoised means as the base at some random states."""
    if not hasattr(nn, config["net"]["activation"]):
        return False
    own = base.embedding
    if config["embedding"]["z_score"] is not None:
        own = own[1]  # pyright: ignore
    with seeded(0):
        again = SbiBase(_build_estimator(config, own), base.unit).to(base.offset.device)
    weights = base.state_dict()
    if {k: v.shape for k, v in again.state_dict().items()} != {k: v.shape for k, v in weights.items()}:
        return False
    again.load_state_dict(weights)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(8, 2, base.dim, generator=generator).to(base.offset)
    x = torch.randn(2, base.x_dim, generator=generator).to(base.offset)
    pairs = [(b.condition(x).mean(z, torch.tensor(s)) for b in (base, again)) for s in (0.05, 1.0)]
    return all(torch.equal(one, other) for one, other in pairs)
