"""What the repository keeps: the tables of the guide are those of the results, and the trained bases load."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from reprior.io import read_rows
from reprior_transits.base import BaseSettings, get_base
from reprior_transits.targets import TARGETS
from reprior_transits.transit_prior import PARAMETERS

HOME = Path(__file__).resolve().parents[1]
GUIDE = HOME.parents[1] / "docs" / "guides" / "lightcurves.md"
PLANETS = {"WASP-39 b": "wasp-39", "WASP-126 b": "wasp-126", "GJ 436 b": "gj-436"}
VALUES = re.compile(r"([\d.]+) \+- ([\d.]+)(?: \(([+-][\d.]+)\))?")
TEXT = GUIDE.read_text()


def tables():
    """(target, name of the row, [(median, sd, z or "")]) of each row of the two tables of posteriors."""
    target = ""
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 4 or not VALUES.search(line):
            continue
        planet = next((name for name in PLANETS if cells[0].startswith(name)), None)
        target = PLANETS[planet] if planet else target
        yield target, "updates" if planet else cells[0], [VALUES.fullmatch(cell) for cell in cells[1:]]


def close(shown: str, value: str) -> bool:
    """Whether a rounded number is that value, to half a unit of its last digit."""
    digits = len(shown.split(".")[1]) if "." in shown else 0
    return abs(float(shown) - float(value)) <= 0.5001 * 10**-digits


@pytest.mark.parametrize(("table", "file", "exact"), [(0, "exact-final", True), (1, "final", False)])
def test_the_posteriors_of_the_guide_are_those_of_the_results(table, file, exact):
    rows = list(tables())
    mine = rows[:6] if table == 0 else rows[6:]
    assert len(rows) == 12
    for target, name, cells in mine:
        if name.startswith("conventional fit"):
            continue
        final = read_rows(HOME / "results" / target / f"{file}.csv")
        run = "exact, known period" if exact or name == "exact" else "known period"
        found = {row["parameter"]: row for row in final if row["posterior"] == run}
        for parameter, cell in zip(("k", "a", "inc"), cells, strict=True):
            median, sd, z = cell.groups()
            assert close(median, found[parameter]["median"]), (target, name, parameter)
            assert close(sd, found[parameter]["sd"]), (target, name, parameter)
            assert z is None or close(z, found[parameter]["z"]), (target, name, parameter)


def test_figures_that_the_guide_shows_exist():
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", TEXT)
    assert len(shown) == 3
    for link in shown:
        assert (GUIDE.parent / link).exists(), link


@pytest.mark.parametrize("name", TARGETS)
def test_the_base_of_each_target_is_there_and_of_its_settings(name):
    target = TARGETS[name]
    settings = BaseSettings(target.windows.half_width, look=target.look)
    folder = HOME / "results" / "bases"
    assert (folder / f"{settings.name}.safetensors").exists()  # else it would be trained
    base = get_base(settings, folder)
    assert base.base.config()["settings"] == asdict(settings.network)
    assert base.parameters == PARAMETERS
