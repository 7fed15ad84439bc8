"""The `reprior` command."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import reprior
from reprior import cli
from reprior_bench import tasks


def call(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "160"})


def test_version_and_help():
    assert call("--version").output.strip() == f"reprior {reprior.__version__}"
    for words in ((), ("bench",), ("demo",), ("tasks",), ("report",), ("bench", "run")):
        result = call(*words, "--help")
        assert result.exit_code == 0, result.output
        assert "Usage" in result.output


def test_tasks_lists_every_task_with_both_regimes_and_its_reference():
    output = " ".join(call("tasks").output.split())
    for name in tasks.names():
        assert name in output
        for parameter in tasks.get(name).parameters:
            assert parameter in output
    assert "exact" in output
    assert "ood" in output
    assert "implicit" in output  # a narrow terminal breaks the lines of a cell


def test_an_error_is_one_line_and_not_a_traceback(tmp_path):
    # Through the entry point itself: a file that is not there.
    code = f"import sys; sys.argv = ['reprior', 'report', '{tmp_path / 'absent'}']; from reprior.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "absent" in done.stderr


def test_importing_reprior_is_light():
    # Heavy libraries come when they are first needed: import reprior alone must not load them.
    code = (
        "import sys, reprior; print([m for m in ('torch', 'sbi', 'sklearn', 'matplotlib', 'ot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_unknown_ones_are_not():
    for name in reprior.__all__:
        assert getattr(reprior, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = reprior.nothing  # pyright: ignore
