from __future__ import annotations

import numpy as np
import pytest

from reprior.errors import FileFormatError, InputError
from reprior_transits import files


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_uses_the_named_columns_and_drops_flagged_rows(tmp_path):
    path = write(tmp_path / "a.csv", "t,f,quality,sector\n1.0,10.0,0,3\n2.0,,0,3\n3.0,12.0,8,3\n4.0,13.0,0,4\n")
    curve = files.read(path, files.Columns(time="t", flux="f"), name="A")
    assert curve.time.tolist() == [1.0, 4.0]
    assert curve.flux.tolist() == [10.0, 13.0]
    assert curve.sector.tolist() == [3, 4]
    assert np.isnan(curve.flux_err).all()
    assert curve.name == "A"


def test_wrong_columns_name_what_the_file_has(tmp_path):
    path = write(tmp_path / "a.csv", "when,brightness\n1.0,10.0\n2.0,11.0\n")
    with pytest.raises(FileFormatError, match="no column 'time'; it has when, brightness"):
        files.read(path)


def test_broken_and_missing_files_give_clear_errors(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        files.read(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"ends in .csv, .fits"):
        files.read(tmp_path / "none.txt")
    with pytest.raises(FileFormatError, match="row 2 has 3 cells, and the header has 2"):
        files.read(write(tmp_path / "ragged.csv", "time,flux\n1.0,2.0\n1.0,2.0,3.0\n"))
    with pytest.raises(FileFormatError, match="row 1: 'bright' is not a number"):
        files.read(write(tmp_path / "text.csv", "time,flux\n1.0,bright\n"))
    with pytest.raises(InputError, match="no usable cadence among 0 rows"):
        files.read(write(tmp_path / "header.csv", "time,flux\n"))
    with pytest.raises(InputError, match="no usable cadence among 2 rows"):
        files.read(write(tmp_path / "nan.csv", "time,flux\n1.0,nan\n2.0,nan\n"))
    with pytest.raises(FileFormatError, match="no column 'time'"):
        files.read(write(tmp_path / "empty.csv", ""))


def spoc_fits(path, time, flux, quality):
    """A FITS file with the columns and keywords of a SPOC light curve."""
    from astropy.io import fits

    columns = [
        fits.Column("TIME", "D", array=time, unit="BJD - 2457000, days"),
        fits.Column("SAP_FLUX", "E", array=0.9 * flux, unit="e-/s"),
        fits.Column("PDCSAP_FLUX", "E", array=flux, unit="e-/s"),
        fits.Column("PDCSAP_FLUX_ERR", "E", array=np.full(len(time), 0.5), unit="e-/s"),
        fits.Column("QUALITY", "J", array=quality),
        fits.Column("CADENCENO", "J", array=np.arange(len(time))),
    ]
    table = fits.BinTableHDU.from_columns(columns, name="LIGHTCURVE")
    table.header["BJDREFI"], table.header["TIMEUNIT"], table.header["TIMESYS"] = 2457000, "d", "TDB"
    primary = fits.PrimaryHDU()
    primary.header["TELESCOP"], primary.header["ORIGIN"] = "TESS", "NASA/Ames"
    primary.header["CREATOR"], primary.header["SECTOR"] = "LightCurveExporterPipelineModule", 7
    primary.header["OBJECT"], primary.header["TICID"] = "TIC 1", 1
    fits.HDUList([primary, table]).writeto(path)


def test_fits_gives_pdcsap_flux_without_flagged_rows(tmp_path):
    time, flux, quality = 1500 + np.arange(6) / 720, 100.0 + np.arange(6), np.array([0, 0, 128, 0, 0, 0])
    flux[4] = np.nan
    spoc_fits(tmp_path / "a_lc.fits", time, flux, quality)
    curve = files.read(tmp_path / "a_lc.fits")
    np.testing.assert_allclose(curve.time, time[[0, 1, 3, 5]])
    np.testing.assert_allclose(curve.flux, flux[[0, 1, 3, 5]])
    assert curve.sector.tolist() == [7] * 4
    (tmp_path / "bad.fits").write_bytes(b"not a FITS file")
    with pytest.raises(FileFormatError, match="not a FITS light curve"):
        files.read(tmp_path / "bad.fits")


def test_download_stitches_normalised_sectors_and_says_when_there_are_none(monkeypatch):
    import lightkurve

    class Found(list):
        def download_all(self, quality_bitmask):
            assert quality_bitmask == "none"  # flags are handled by from_arrays, in one place
            return list(self)

    def sector(number, level):
        curve = lightkurve.LightCurve(
            time=100 * number + np.arange(5) / 720, flux=level * np.array([1, 1, 1.1, 0.9, 1])
        )
        curve["quality"] = np.array([0, 0, 0, 0, 4])
        curve.meta["SECTOR"] = number
        return curve

    monkeypatch.setattr(lightkurve, "search_lightcurve", lambda *a, **k: Found([sector(1, 50.0), sector(2, 80.0)]))
    curve = files.download("somewhere")
    np.testing.assert_allclose(curve.flux, [1, 1, 1.1, 0.9] * 2, rtol=1e-12)
    assert curve.sector.tolist() == [1] * 4 + [2] * 4
    monkeypatch.setattr(lightkurve, "search_lightcurve", lambda *a, **k: Found())
    with pytest.raises(InputError, match="MAST has no TESS light curve of 'nowhere' by SPOC"):
        files.download("nowhere")
