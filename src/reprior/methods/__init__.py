"""The methods of changing a prior, one file each.

To add one: write a subclass of `Method` in a file of its own and add it to the list below; from another package, call
`register` on it.
"""

from __future__ import annotations

from reprior.methods.auto import Auto
from reprior.methods.learned import KLIEP, NRE, Hellinger, Pearson, RatioSettings, ReverseKL
from reprior.methods.method import Drawn, Method, Problem
from reprior.methods.plug_in import PlugIn
from reprior.methods.registry import find, register, registered
from reprior.methods.rejuvenate import Rejuvenate, RejuvenateSettings
from reprior.methods.sir import SIR, SIRSettings
from reprior.methods.smc import SMC, SMCSettings
from reprior.methods.transport import Transport, TransportSettings
from reprior.methods.unchanged import NoChange

for _method in (Auto, Transport, SMC, Rejuvenate, NRE, KLIEP, Pearson, ReverseKL, Hellinger, PlugIn, SIR, NoChange):
    register(_method)

__all__ = [
    "Drawn",
    "Method",
    "Problem",
    "RatioSettings",
    "RejuvenateSettings",
    "SIRSettings",
    "SMCSettings",
    "TransportSettings",
    "find",
    "register",
    "registered",
]
