"""From files to a report: what the command line calls."""

from __future__ import annotations

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal

import reprior
from reprior.diagnostics import DiagnoseSettings, run_report
from reprior.diagnostics.run import read_x
from reprior.errors import FileFormatError, InputError

LIGHT = DiagnoseSettings(draws=300, pool=600, pairs=150, ranks=20)


def test_command_reads_files_and_writes_the_report(tmp_path):
    posterior, prior = gaussian_posterior(dim=2, n=1_500)
    stored = posterior.simulations
    assert stored is not None
    small, quick = reprior.MLPSettings(width=32, blocks=1), reprior.Training(steps=60, batch=256)
    trained = reprior.train(stored.theta, stored.x, prior, settings=small, training=quick, progress=False)
    q = MultivariateNormal(torch.full((2,), 0.3), 0.6 * torch.eye(2))
    path = reprior.adapt(trained, q).save(tmp_path / "adapted", simulations=True)
    (tmp_path / "x.txt").write_text("0.5, -0.3\n")
    report = run_report(path, tmp_path / "x.txt", tmp_path / "out.html", settings=LIGHT)
    assert report.about["observation"] == pytest.approx([0.5, -0.3])
    assert report.verdict in (tmp_path / "out.html").read_text(encoding="utf-8")
    plain = trained.save(tmp_path / "base")
    with pytest.raises(InputError, match="prior was not changed"):
        run_report(plain, [0.5, -0.3], tmp_path / "no.html")
    # The same with the simulations in a file of their own.
    bare = reprior.adapt(trained, q).save(tmp_path / "bare", simulations=False)
    kept = stored.save(tmp_path / "stored")
    again = run_report(bare, [0.5, -0.3], tmp_path / "again.html", simulations=kept, settings=LIGHT)
    assert [c.value for c in again.checks] == pytest.approx([c.value for c in report.checks], nan_ok=True)


def test_x_is_read_from_numbers_and_files(tmp_path):
    import numpy as np

    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0]]))
    assert read_x(tmp_path / "x.npy").tolist() == [1.0, 2.0]
    assert read_x([1, 2]).tolist() == [1.0, 2.0]
    (tmp_path / "bad.txt").write_text("one two")
    with pytest.raises(FileFormatError, match="does not hold an observation"):
        read_x(tmp_path / "bad.txt")
    with pytest.raises(InputError, match="there is no file"):
        read_x(tmp_path / "none.txt")
