"""The network of a learned ratio, with the plug-in value (`reprior.methods.plug_in`) as a starting point.

a(z, s, x) = (1 + g(s)) plug-in value + network(z, s, x). The gate g and the network are zero before training, so training
starts from the plug-in value. Training can move g(s) to -1 at noise levels where the plug-in value is wrong.
"""

from __future__ import annotations

from torch import Tensor, nn

from reprior.networks.ratio import RatioMLP, RatioNetworkSettings

__all__ = ["RatioModel"]


class RatioModel(nn.Module):
    """a(z, s, x) = (1 + g(s)) plug-in value + network(z, s, x).

    Arguments:
        dim: the number D of diffused variables.
        x_features: the size of the features of x.
        settings: the architecture.
        with_plug_in: whether the plug-in value takes part.
    """

    def __init__(self, dim: int, x_features: int, settings: RatioNetworkSettings, with_plug_in: bool):
        super().__init__()
        self.network = RatioMLP(dim, x_features, 1, settings)
        self.with_plug_in = with_plug_in
        if with_plug_in:
            self.gate = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))
            nn.init.zeros_(self.gate[2].weight)  # pyright: ignore[reportArgumentType]
            nn.init.zeros_(self.gate[2].bias)  # pyright: ignore[reportArgumentType]

    def forward(self, z: Tensor, s: Tensor, code: Tensor, plug_in: Tensor) -> Tensor:
        """a, with shape (*, K); ``plug_in`` has that shape, and is not used where there is none."""
        a = self.network(z, s, code)[..., 0]
        if not self.with_plug_in:
            return a
        s = s.reshape(1) if s.ndim == 0 else s
        return a + (1 + self.gate(s.log())[..., 0]) * plug_in
