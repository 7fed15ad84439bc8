"""Reading light curves: CSV and FITS files, and lightkurve's download by the name of the target.

Each reader ends in `photometry.from_arrays`: rows with a quality flag other than 0, or without a finite time
and flux, are dropped, and a file of which nothing is left is an error. Fluxes keep the unit of the file; see
`photometry.normalise`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior.errors import FileFormatError, InputError
from reprior_transits.photometry import LightCurve, from_arrays, normalise, stitch

__all__ = ["Columns", "download", "from_lightkurve", "read", "read_csv", "read_fits"]


@dataclass(frozen=True)
class Columns:
    """The column names of a CSV file. An empty string means that the file has no such column.

    Arguments:
        time: days.
        flux: brightness, in any unit.
        flux_err: its standard error, in the unit of flux.
        quality: flags; rows with a flag other than 0 are dropped.
        sector: the number of the observing sector; without it the file is one sector.
    """

    time: str = "time"
    flux: str = "flux"
    flux_err: str = "flux_err"
    quality: str = "quality"
    sector: str = "sector"

    def __post_init__(self) -> None:
        if not self.time or not self.flux:
            raise InputError(f"time and flux need a column name; got time={self.time!r}, flux={self.flux!r}")


def read_csv(path: str | Path, columns: Columns = Columns(), name: str = "") -> LightCurve:  # noqa: B008
    """Reads a CSV file with a header line.

    Arguments:
        path: the file.
        columns: the names of its columns; time and flux must exist, the others are used where they exist.
        name: what was observed; the file's name where empty.
    """
    path = Path(path)
    _must_exist(path)
    with path.open(newline="", encoding="utf-8") as lines:
        header, *rows = [row for row in csv.reader(lines) if row] or [[]]
    found = [name.strip() for name in header]
    for wanted in (columns.time, columns.flux):
        if wanted not in found:
            raise FileFormatError(
                f"{path} has no column {wanted!r}; it has {', '.join(found) or 'none'}. "
                "Name them: columns=Columns(time=..., flux=...)"
            )
    values = {
        field.name: _column(path, rows, found.index(column), len(found))
        for field in fields(Columns)
        if (column := getattr(columns, field.name)) in found
    }
    return from_arrays(**values, name=name or path.stem)


def read_fits(path: str | Path, name: str = "") -> LightCurve:
    """Reads a FITS light curve of TESS, of Kepler or of lightkurve itself; PDCSAP flux where it exists.

    Arguments:
        path: the file.
        name: what was observed; the file's name where empty.
    """
    path = Path(path)
    _must_exist(path)
    import lightkurve

    try:
        curve = lightkurve.read(str(path), quality_bitmask="none")
    except (OSError, lightkurve.utils.LightkurveError) as error:
        raise FileFormatError(f"{path} is not a FITS light curve that lightkurve can read: {error}") from error
    return from_lightkurve(curve, name or path.stem)


def read(path: str | Path, columns: Columns = Columns(), name: str = "") -> LightCurve:  # noqa: B008
    """Reads a .fits or .csv light curve; see `read_fits` and `read_csv`."""
    suffixes = "".join(Path(path).suffixes[-2:]).lower()
    if suffixes.endswith(".csv"):
        return read_csv(path, columns, name)
    if suffixes.endswith((".fits", ".fit", ".fits.gz")):
        return read_fits(path, name)
    raise InputError(f"{path}: a light curve file ends in .csv, .fits, .fit or .fits.gz")


def download(name: str, author: str = "SPOC", exposure: int = 120) -> LightCurve:
    """Downloads every sector of a target from MAST with lightkurve, normalised and stitched (online).

    Arguments:
        name: the target, as an archive knows it ("WASP-39").
        author: who reduced the data.
        exposure: seconds per cadence.
    """
    import lightkurve

    found = lightkurve.search_lightcurve(name, mission="TESS", author=author, exptime=exposure)
    if len(found) == 0:
        raise InputError(f"MAST has no TESS light curve of {name!r} by {author} with {exposure} s exposures")
    curves: Any = found.download_all(quality_bitmask="none")
    return stitch([normalise(from_lightkurve(curve, name)) for curve in curves])


def from_lightkurve(curve: Any, name: str) -> LightCurve:
    """A lightkurve.LightCurve as ours; its column `quality` and keyword `SECTOR` are used if they exist."""

    def column(key: str, missing: float) -> NDArray[Any]:
        if key not in curve.columns:
            return np.full(len(curve), missing)
        values = getattr(curve[key], "value", curve[key])
        return np.ma.filled(np.ma.asarray(getattr(values, "unmasked", values), dtype=float), np.nan)

    flux = column("flux", np.nan)
    hidden = getattr(curve["flux"], "mask", np.zeros(len(curve), dtype=bool))
    flux = np.where(hidden, np.nan, flux)
    sector = curve.meta.get("SECTOR") or 1
    return from_arrays(
        np.asarray(curve.time.value, dtype=float),
        flux,
        column("flux_err", np.nan),
        column("quality", 0.0),
        sector,
        name,
    )


def _must_exist(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"there is no file {path}")


def _column(path: Path, rows: list[list[str]], index: int, width: int) -> NDArray[np.float64]:
    # One column as numbers; an empty cell is NaN.
    values = np.empty(len(rows))
    for i, row in enumerate(rows):
        if len(row) != width:
            raise FileFormatError(f"{path}: row {i + 1} has {len(row)} cells, and the header has {width}")
        try:
            values[i] = float(row[index]) if row[index].strip() else np.nan
        except ValueError as error:
            raise FileFormatError(f"{path}: row {i + 1}: {row[index]!r} is not a number") from error
    return values
