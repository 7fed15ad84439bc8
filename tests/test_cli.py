"""The `reprior` command, and what `import reprior` brings."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import reprior
from reprior import cli


def call(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "160"})


def test_version_and_help():
    assert call("--version").output.strip() == f"reprior {reprior.__version__}"
    for words in ((), ("methods",), ("report",)):
        result = call(*words, "--help")
        assert result.exit_code == 0, result.output
        assert "Usage" in result.output


def test_methods_are_listed_with_what_they_do():
    result = call("methods")
    assert result.exit_code == 0, result.output
    output = " ".join(result.output.split())
    for name, method in reprior.methods.registered().items():
        assert name in output
        assert method.summary[:20] in output


def test_an_error_is_one_line_and_not_a_traceback(tmp_path):
    # Through the entry point itself: a file that is not there.
    code = f"import sys; sys.argv = ['reprior', 'report', '{tmp_path / 'absent'}']; from reprior.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "absent" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_reprior_is_light():
    # A heavy library comes when it is first needed, and the library's own modules with it.
    code = "import sys, reprior; print(sorted(m for m in sys.modules if m.split('.')[0] in {})); print(sorted(m for m in sys.modules if m.startswith('reprior')))"
    heavy = ("torch", "sbi", "scipy", "sklearn", "matplotlib", "arviz_stats", "tqdm", "numpy", "rich", "typer")
    done = subprocess.run([sys.executable, "-c", code.format(heavy)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['reprior', 'reprior._version']"]


def test_the_library_does_not_import_an_optional_package_by_itself():
    # Every public name but from_sbi, and no extra and neither of the two other packages of the repository is loaded.
    optional = ("sbi", "corner", "ot", "distributed", "arviz_base", "lightkurve", "reprior_bench", "reprior_transits")
    code = (
        "import sys, reprior\n"
        "for name in reprior.__all__:\n"
        "    if name != 'from_sbi': getattr(reprior, name)\n"
        f"print(sorted(m for m in {optional} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_unknown_ones_are_not():
    for name in reprior.__all__:
        assert getattr(reprior, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = reprior.nothing  # pyright: ignore
