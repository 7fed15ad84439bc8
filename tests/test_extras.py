"""A missing optional package is said with the extra that installs it."""

from __future__ import annotations

import sys

import pytest

from reprior.extras import MissingExtraError, need


def test_a_module_that_is_there_is_given():
    assert need("json", "sbi", "this test") is sys.modules["json"]


def test_a_missing_one_names_its_extra():
    with pytest.raises(ImportError, match=r"to_x needs no_such_module.*pip install 'reprior\[arviz\]'"):
        need("no_such_module", "arviz", "to_x")


def test_a_module_that_breaks_for_another_reason_says_that_reason(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import a_module_it_needs")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="a_module_it_needs") as raised:
        need("half_installed", "arviz", "to_x")
    assert not isinstance(raised.value, MissingExtraError)
