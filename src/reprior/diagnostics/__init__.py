"""Diagnostics: can an adapted posterior be trusted?

    report = reprior.diagnose(adapted, x=x_obs)
    print(report)                      # verdict, reasons, every check
    report.to_html("report.html")      # one file for a referee

To add a check: write a subclass of `Check` in the file of its family and add it to the list below; from another package, call
`register_check` on it.
"""

from __future__ import annotations

from reprior.diagnostics.base import LocalSimulations, ResidualInformation
from reprior.diagnostics.c2st import c2st
from reprior.diagnostics.calibration import SBC, TARP, Calibration, Pairs, calibrate
from reprior.diagnostics.case import Case
from reprior.diagnostics.change import ESS, Agreement, Correction, Gap, KHat, Reweighted
from reprior.diagnostics.check import CHECKS, Check, Figure, Outcome, judge, register_check
from reprior.diagnostics.draws import Scene
from reprior.diagnostics.question import Distance, Sampling, Support
from reprior.diagnostics.report import DiagnoseSettings, Report, diagnose
from reprior.diagnostics.run import run_report

for _check in (
    *(Sampling, Support, Distance),
    *(LocalSimulations, ResidualInformation),
    *(ESS, Gap, KHat, Correction, Reweighted, Agreement),
    *(Pairs, SBC, TARP),
):
    register_check(_check)

__all__ = [
    "CHECKS",
    "Calibration",
    "Case",
    "Check",
    "DiagnoseSettings",
    "Figure",
    "Outcome",
    "Report",
    "Scene",
    "c2st",
    "calibrate",
    "diagnose",
    "judge",
    "register_check",
    "run_report",
]
