"""The study end to end on a small simulated system: a small base, three windows, and a run that was stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from reprior.diagnostics import DiagnoseSettings
from reprior.errors import InputError
from reprior.methods import RejuvenateSettings
from reprior.sequential import AccumulateSettings, RatioUpdateSettings
from reprior_transits import cli
from reprior_transits import study as module
from reprior_transits.base import BaseSettings, encode, get_base, simulate_windows
from reprior_transits.coordinates import TRANSIT
from reprior_transits.look import Look
from reprior_transits.period import Ephemeris
from reprior_transits.photometry import from_arrays
from reprior_transits.study import StudySettings, competitor_settings, run_study
from reprior_transits.targets import Reference, Target
from reprior_transits.transit import TransitSimulator
from reprior_transits.windows import Photometry, Windows

TRUTH = torch.tensor([0.12, 9.0, 88.0, 3.5, 0.0, 0.35, 0.18, 0.001])
REFERENCE = Reference(
    k=0.12, a=9.0, inc=88.0, period=3.5, source="simulated", k_error=0.002, a_error=0.2, inc_error=0.5
)
BASE = BaseSettings(simulations=3_000, steps=600, batch=128, width=32, blocks=1, features=16)
SETTINGS = StudySettings(
    base=BASE,
    accumulate=AccumulateSettings(
        points=100, checks=10, moves=5, coordinates=TRANSIT, rejuvenate=RejuvenateSettings(pool=500)
    ),
    competitors={},
    samples=200,
    exact=50,
    stored=1_200,
    diagnosis=DiagnoseSettings(draws=200, pool=500, pairs=0),
)


def system(windows=3):
    simulator = TransitSimulator()
    x = simulator.simulate(TRUTH.repeat(windows, 1), seed=1).double().numpy()
    x[0, 100:] = np.nan
    mid_times = 10 + 3.5 * np.arange(windows)
    ephemeris = Ephemeris(3.5, 10.0, 0.12)
    curve = from_arrays(np.arange(10) / 10, np.ones(10))
    made = Windows(
        simulator.time,
        x,
        np.isfinite(x).astype(np.int64),
        mid_times,
        np.arange(windows),
        np.ones(windows, dtype=bool),
        0.12,
        name="simulated",
    )
    target = Target("simulated", "simulated b", REFERENCE, REFERENCE)
    return target, Photometry(curve, ephemeris, made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("study")


@pytest.mark.slow
def test_a_study_goes_on_after_it_was_stopped_and_writes_everything(folder, monkeypatch):
    target, photometry = system()
    real, calls = module.update, []

    def stopped(*args, **others):
        calls.append(others["folder"].name)
        if others["folder"].name == "shuffled":
            raise KeyboardInterrupt
        return real(*args, **others)

    monkeypatch.setattr(module, "update", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_study(target, photometry, folder, SETTINGS, progress=False)
    assert (folder / "bases" / f"{BASE.name}.safetensors").exists()
    before = sorted((folder / "updates" / "accumulate").iterdir())
    assert len(before) == 3
    times = [path.stat().st_mtime_ns for path in before]
    monkeypatch.setattr(module, "update", real)
    study = run_study(target, photometry, folder, SETTINGS, progress=False)
    assert [path.stat().st_mtime_ns for path in before] == times  # read, not made again
    assert set(study.runs) == {"accumulate", "shuffled", "known period", "exact"}
    assert [len(steps) for steps in study.runs.values()] == [3] * 4
    assert sorted(study.order.tolist()) == [0, 1, 2]
    for path in study.files.values():
        assert path.stat().st_size > 0
    again = run_study(target, photometry, folder, SETTINGS, progress=False)  # reads its files: the times stay
    assert again.checks["seconds_shuffled"] == pytest.approx(study.checks["seconds_shuffled"], rel=1e-3)
    assert {path.suffix for path in study.files.values()} == {".csv", ".png", ".html"}
    assert study.checks["shuffled_c2st"] < 0.75
    # The period is drawn again; what a window sees stays.
    made, drawn = study.updates[-1].samples, study.runs["accumulate"][-1]
    assert drawn[:, 1] / drawn[:, 3] == pytest.approx(made[:, 1] / made[:, 3], rel=1e-3)
    assert float((drawn[:, 3] - made[:, 3]).abs().mean()) > 0.1
    last = study.runs["exact"][-1]
    assert float(last[:, 0].mean()) == pytest.approx(0.12, abs=0.01)


def test_windows_of_another_base_are_refused(folder):
    target, photometry = system()
    with pytest.raises(InputError, match=r"windows extend 0.5 d from mid-transit and those of the base 0.1 d"):
        run_study(target, photometry, folder, replace(SETTINGS, base=BaseSettings(half_width=0.1)))
    with pytest.raises(InputError, match="windows have 128 points and the base 64"):
        run_study(target, photometry, folder, replace(SETTINGS, base=BaseSettings(points=64)))


def test_windows_that_do_not_look_like_those_of_the_base_are_left_out(folder):
    target, photometry = system()
    never = Look(depth=(0.5, 0.6), duration=(0.05, 0.2), noise=(0.0, 0.01), middle=(-0.1, 0.1))
    with pytest.raises(InputError, match="no window is left: does not look like the windows of the base"):
        run_study(target, photometry, folder, replace(SETTINGS, base=replace(BASE, look=never)))
    made = photometry.windows
    kept = made.keep(np.array([True, False, True]), "too deep")
    assert len(kept) == 2
    assert kept.mid_times.tolist() == made.mid_times[[0, 2]].tolist()
    assert [(one.mid_time, one.reason) for one in kept.rejected] == [(made.mid_times[1], "too deep")]


def test_encoding_marks_what_is_missing():
    x = torch.tensor([[1.0, 0.99, float("nan"), 1.001]])
    out = encode(x.repeat(1, 2))[:, [0, 1, 2, 3, 8, 9, 10, 11]]
    assert out[0, 4:].tolist() == [0, 0, 1, 0]
    assert out[0, :4] == pytest.approx([0, np.arcsinh(10), 0, np.arcsinh(-1)], abs=1e-3)


def test_simulated_windows_have_gaps_and_no_unphysical_draw():
    pairs = simulate_windows(BASE, 2_000, seed=4)
    assert pairs.x.isfinite().all()
    assert len(pairs) + pairs.dropped == 2_000
    # 0.8 % of the prior's draws are unphysical: 16 +- 4 of 2,000.
    assert 2 <= pairs.dropped <= 34
    assert 0.1 < (pairs.x[:, 128:256].sum(1) > 4).double().mean() < 0.7


def test_a_base_is_read_again_and_its_name_says_what_differs(folder):
    base = get_base(BASE, folder / "bases", progress=False)
    assert base.simulations is None
    assert base.parameters[0] == "k"
    assert BaseSettings(half_width=0.1).name == "base-0.1d"
    assert BASE.name == "base-0.5d-simulations3000-steps600-batch128-width32-blocks1-features16"
    with pytest.raises(InputError, match="steps must be at least 1; got 0"):
        BaseSettings(steps=0)


def test_the_command_names_a_bad_target_or_file(tmp_path):
    def call(*words):
        return CliRunner().invoke(cli.app, words, env={"COLUMNS": "160"})

    assert "WASP-126 b" in call("targets").output
    unknown = call("run", "--target", "hd-1", "--data", "x.csv")
    assert isinstance(unknown.exception, InputError)
    assert "unknown target 'hd-1'" in str(unknown.exception)
    absent = call("run", "--target", "wasp-39", "--data", str(tmp_path / "absent.csv"), "--folder", str(tmp_path))
    assert "there is no file" in str(absent.exception)
    assert call("run").exit_code == 2


def test_competitors_are_named_and_priorguide_needs_the_benchmark(monkeypatch):
    assert competitor_settings(["ratio"]) == {"ratio": RatioUpdateSettings()}
    with pytest.raises(InputError, match="'magic' is unknown; allowed: ratio, priorguide_mc"):
        competitor_settings(["magic"])

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", absent)
    with pytest.raises(InputError, match=r"needs reprior-bench: pip install \./benchmarks"):
        competitor_settings(["priorguide_mc"])


def test_the_entry_point_shows_an_error_as_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["reprior-transits", "run", "--target", "hd-1"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: unknown target 'hd-1'")
