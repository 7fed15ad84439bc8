"""The library as a user installs it: the wheel with its declared dependencies, and no optional package.

The wheel is built from the working tree and installed into a fresh venv. The packages that it declares are linked from the
venv that runs the tests, which takes no network and no minute; every other one (sbi, corner, POT, distributed, ...) is
absent, so that an undeclared import fails here as it would on a user's machine.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OPTIONAL = ("sbi", "corner", "ot", "distributed", "arviz_base", "pytransit", "reprior_bench", "reprior_transits")

SCRIPT = """
import sys
import torch
from torch.distributions import Normal, Independent
import reprior

assert reprior.__file__.startswith(sys.prefix), reprior.__file__
p = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
q = Independent(Normal(torch.tensor([0.5, 0.0]), torch.tensor([0.7, 1.0])), 1)
generator = torch.Generator().manual_seed(0)
theta = torch.randn(1_000, 2, generator=generator)
x = theta + 0.5 * torch.randn(1_000, 2, generator=generator)
posterior = reprior.train(theta, x, prior=p, training=reprior.Training(steps=20), progress=False)
posterior.save("base.safetensors")
adapted = reprior.adapt(reprior.load("base.safetensors"), q)
observed = torch.tensor([0.3, -0.4])
samples, info = adapted.sample((100,), x=observed, seed=1, return_info=True)
assert samples.shape == (100, 2) and bool(torch.isfinite(samples).all()), samples
report = reprior.diagnose(adapted, x=observed)
report.to_html("report.html")
adapted.save("adapted.safetensors")
again = reprior.load("adapted.safetensors").sample((100,), x=observed, seed=1)
assert torch.equal(samples, again)
try:
    reprior.from_sbi(object(), theta, x)
except ImportError as error:
    assert "pip install 'reprior[sbi]'" in str(error), error
else:
    raise AssertionError("from_sbi worked without sbi")
from reprior.integrations.arviz import to_arviz
try:
    to_arviz(adapted, observed)
except ImportError as error:
    assert "pip install 'reprior[arviz]'" in str(error), error
else:
    raise AssertionError("to_arviz worked without arviz-base")
print("verdict:", report.verdict)
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Without isolation the build takes hatchling from this venv, so it needs no network.
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT, cwd=folder)
    (built,) = folder.glob("reprior-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The interpreter of a venv that holds the wheel and sees its declared dependencies alone."""
    venv = tmp_path_factory.mktemp("fresh") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=ROOT)
    python = venv / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=venv)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=venv).strip())
    for name in sorted(declared(wheel) - {"reprior"}):
        found = distribution(name)
        for top in {Path(file).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():  # packages may share a folder (nvidia/)
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return python


def declared(wheel: Path) -> set[str]:
    """The distributions that the wheel installs: its requirements without extras, and theirs."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    found: set[str] = {"reprior"}
    waiting = [(Requirement(r), "") for r in metadata.get_all("Requires-Dist", [])]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not wanted or (name in found and not requirement.extras):
            continue
        found.add(name)
        for each in requirement.extras or {""}:
            waiting += [(Requirement(r), each) for r in distribution(name).requires or []]
    return found


def test_the_wheel_holds_the_library_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"reprior", next(t for t in tops if t.endswith(".dist-info"))}


def test_no_optional_package_is_a_hard_dependency(wheel):
    needed = declared(wheel)
    assert {"torch", "numpy", "scipy", "scikit-learn", "safetensors", "typer", "matplotlib", "jinja2"} <= needed
    assert not {"sbi", "corner", "pot", "distributed", "arviz-base", "arviz", "pandas", "reprior-bench"} & needed


@pytest.mark.slow
def test_train_adapt_sample_diagnose_save_load_without_an_optional_package(python, tmp_path):
    for module in OPTIONAL:
        done = subprocess.run([str(python), "-c", f"import {module}"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in done.stderr, module
    assert "verdict:" in run(python, "-c", SCRIPT, cwd=tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_the_command_works(python, tmp_path):
    output = run(python.parent / "reprior", "methods", cwd=tmp_path)
    assert "transport" in output
    assert "auto" in output
