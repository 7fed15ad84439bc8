"""The HTML report: one file, nothing fetched, no script, no error in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import Independent, MultivariateNormal, Uniform

import reprior
from reprior.diagnostics import DiagnoseSettings, corner, diagnose
from reprior.diagnostics.draws import Scene

X = torch.tensor([0.5, -0.3])
LIGHT = DiagnoseSettings(draws=600, pool=1_500, pairs=150, ranks=20)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def target(by: float) -> MultivariateNormal:
    return MultivariateNormal(torch.full((2,), by), 0.6 * torch.eye(2))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    posterior, _ = gaussian_posterior(dim=2)
    report = diagnose(reprior.adapt(posterior, target(0.5)), X, settings=LIGHT)
    return report, report.to_html(tmp_path_factory.mktemp("report") / "report.html")


class _Links(HTMLParser):
    """Every address that a browser would fetch or follow, and every tag."""

    def __init__(self):
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "action", "poster")]


def test_nothing_is_fetched(page):
    text = page[1].read_text(encoding="utf-8")
    links = _Links()
    links.feed(text)
    assert len(links.addresses) >= 6  # the five figures and the icon
    assert all(address.startswith("data:") for address in links.addresses)
    assert "script" not in links.tags
    assert not re.search(r"@import|url\(", text)
    assert not re.search(r"https?://", re.sub(r"data:[^\"']*", "", text))


def test_page_says_what_the_report_says(page):
    report, path = page
    text = path.read_text(encoding="utf-8")
    assert f'<span class="badge">{report.verdict}</span>' in text
    for one in report.checks:
        assert one.title in text
    assert text.count("data:image/png;base64,") == 5
    assert f"reprior {reprior.__version__}" in text


def test_names_are_escaped(page, tmp_path):
    from dataclasses import replace

    report = replace(page[0], parameters=("<b>mass</b>", "a & b"), why="r < 1 & <script>alert(1)</script>")
    text = report.to_html(tmp_path / "odd").read_text(encoding="utf-8")
    assert (tmp_path / "odd.html").exists()
    assert "<script>" not in text
    assert "&lt;b&gt;mass&lt;/b&gt;" in text


def test_corner_plot_leaves_room_for_both_layers(monkeypatch):
    # After is wider than before, so the histogram of before is the taller one.
    generator = torch.Generator().manual_seed(0)
    before, after = torch.randn(1_000, 3, generator=generator), 3 * torch.randn(1_000, 3, generator=generator)
    scene = Scene(X, before, after, torch.zeros(1_000), torch.zeros(1_000), 1.0)
    monkeypatch.setattr(corner, "png", lambda fig, tight=False: fig)
    drawn: Any = corner.corner_figure(scene, ("a", "b", "c"), [0, 1, 2])
    for axis in drawn.axes[::4]:
        assert len(axis.lines) == 2
        assert axis.get_ylim()[1] > max(line.get_ydata().max() for line in axis.lines)


def test_failed_draws_still_give_a_page(tmp_path):
    posterior, _ = gaussian_posterior(dim=2)
    adapted = reprior.adapt(posterior, target(9.0), method="transport")
    report = diagnose(adapted, X, settings=LIGHT)
    assert report["sampling"].outcome == "stop"
    text = report.to_html(tmp_path / "failed.html").read_text(encoding="utf-8")
    assert "do not trust" in text
    assert "There is no calibration" in text


def test_a_target_that_no_base_sample_reaches_gives_a_page(tmp_path):
    posterior, _ = gaussian_posterior(dim=2, c=0.05)
    box = Independent(Uniform(torch.tensor([-3.0, -3.0]), torch.tensor([-2.5, 3.0])), 1)
    report = diagnose(reprior.adapt(posterior, box), torch.tensor([1.0, 0.2]), settings=LIGHT)
    assert report.verdict == "do not trust"
    assert "No base sample has any weight" in report.to_html(tmp_path / "none.html").read_text(encoding="utf-8")


def test_browser_shows_it_without_network_or_errors(page):
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser to test with: none of {', '.join(BROWSERS)} is installed")
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
            "--dump-dom",
            page[1].as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert 'class="verdict ok"' in done.stdout or 'class="verdict caution"' in done.stdout
    # What a page says on its console is logged as "... CONSOLE ...".
    assert "CONSOLE" not in done.stderr
