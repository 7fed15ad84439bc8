"""Twisted sequential Monte Carlo (`reprior.methods.smc.smc`)."""

from reprior.methods.smc.smc import SMC, SMCSettings

__all__ = ["SMC", "SMCSettings"]
