"""The README's example runs as it stands, and its commands and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert code is not None
    space: dict = {}
    state = torch.get_rng_state()
    exec(compile(code[1], "README.md", "exec"), space)
    torch.set_rng_state(state)
    assert space["samples"].shape == (1_000, 2)
    assert space["again"].method.name == space["adapted"].method.name
    # q = N((.5, 0), .3 I) and x = theta + N(0, .09 I) at (.8, -.2): the exact mean is (q/.3 + x/.09) / (1/.3 + 1/.09),
    # the sd .263. The base is linear-Gaussian, which 200 steps keep within a fifth of a sd (sampling error: .03 sd).
    exact = (torch.tensor([0.5, 0.0]) / 0.3 + torch.tensor([0.8, -0.2]) / 0.09) / (1 / 0.3 + 1 / 0.09)
    assert float((space["samples"].mean(0) - exact).abs().max()) < 0.2 * 0.263


def test_links_and_targets_exist():
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        if not link.startswith("http"):
            path, _, heading = link.partition("#")
            assert (ROOT / path).exists(), link
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE) if heading else []
            assert not heading or heading in [h.lower().replace(" ", "-") for h in headings], link
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^ {4}make (\w+)", TEXT, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_extras_and_commands_exist():
    settings = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r"['`]\.?\[(\w+)\]['`]", TEXT)
    assert "sbi" in extras
    for extra in extras:
        assert re.search(rf"^{extra} = \[", settings, re.MULTILINE), extra
    everything = settings + "".join(
        (ROOT / part / "pyproject.toml").read_text() for part in ("benchmarks", "studies/transits")
    )
    for command in set(re.findall(r"`(reprior[-\w]*) \w+", TEXT)):
        assert f"\n{command} = " in everything, command
