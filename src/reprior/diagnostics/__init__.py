"""Diagnostics: can an adapted posterior be trusted?

report = reprior.diagnose(adapted, x=x_obs)
print(report)                      # verdict, reasons, every check
report.to_html("report.html")      # one file for a referee
"""

from __future__ import annotations

from reprior.diagnostics.calibration import Calibration, calibrate
from reprior.diagnostics.checks import Check, Thresholds
from reprior.diagnostics.run import run_report
from reprior.diagnostics.verdict import DiagnoseSettings, Report, diagnose

__all__ = [
    "Calibration",
    "Check",
    "DiagnoseSettings",
    "Report",
    "Thresholds",
    "calibrate",
    "diagnose",
    "run_report",
]
