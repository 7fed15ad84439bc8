"""The store: results come back for their own key only; damaged ones are made again."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from reprior import io
from reprior.errors import InputError
from reprior.store import Store

KEY = {"seed": 1, "x": torch.arange(3.0), "settings": {"steps": (1, 2)}}
TENSORS = {"theta": torch.linspace(0, 1, 12).reshape(4, 3)}


def test_a_result_comes_back_exactly(tmp_path: Path):
    store = Store(tmp_path / "new" / "folder", "draws")
    assert store.get(KEY) is None
    assert not store.folder.exists()
    put = store.put(KEY, TENSORS, {"steps": (3, 4)})
    got = Store(store.folder, "draws").get({**KEY, "settings": {"steps": [1, 2]}, "x": torch.arange(3.0)})
    assert got is not None
    assert got.meta == put.meta == {"steps": [3, 4]}
    assert torch.equal(got.tensors["theta"], TENSORS["theta"])
    assert torch.equal(put.tensors["theta"], TENSORS["theta"])


@pytest.mark.parametrize("other", [{"seed": 2}, {"x": torch.arange(3.0) + 1e-7}, {"settings": {}}, {"more": None}])
def test_another_key_finds_nothing(tmp_path: Path, other: dict):
    Store(tmp_path, "draws").put(KEY, TENSORS)
    assert Store(tmp_path, "draws").get({**KEY, **other}) is None
    assert Store(tmp_path, "fit").get(KEY) is None


def test_runs_of_several_settings_share_a_folder(tmp_path: Path):
    store = Store(tmp_path, "draws")
    for seed in range(3):
        store.put({"seed": seed}, {"a": torch.tensor(seed)})
    store.put({"seed": 1}, {"a": torch.tensor(10)})
    kept = [store.get({"seed": seed}) for seed in range(3)]
    assert [int(file.tensors["a"]) for file in kept if file is not None] == [0, 10, 2]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_damaged_result_is_removed_with_a_warning(tmp_path: Path):
    store = Store(tmp_path, "draws")
    store.put(KEY, TENSORS)
    path = store.path(KEY)
    data = path.read_bytes()
    for damaged in (data[:100], data[:-1] + bytes([data[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match="damaged file was removed"):
            assert store.get(KEY) is None
        assert not path.exists()
    # A whole file of another kind, or without what a store writes.
    io.write(path, "posterior", {}, {})
    with pytest.warns(UserWarning, match="'posterior'"):
        assert store.get(KEY) is None
    io.write(path, "draws", {}, {})
    with pytest.warns(UserWarning, match="damaged file was removed"):
        assert store.get(KEY) is None
    store.put(KEY, TENSORS)
    assert store.get(KEY) is not None


def test_results_of_other_settings_are_pointed_out(tmp_path: Path):
    store = Store(tmp_path / "run", "draws")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.warn_if_other(KEY)  # no folder yet
    store.put({**KEY, "seed": 2, "settings": {}}, TENSORS)
    store.put({**KEY, "seed": 2}, TENSORS)
    Store(store.folder, "fit").put({"a": 1}, {})
    (store.folder / "draws-notes.safetensors").write_text("not a result")
    with pytest.warns(UserWarning, match=r"other settings only.*differ in: seed$"):
        store.warn_if_other(KEY)
    store.put(KEY, TENSORS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.warn_if_other(KEY)


def test_a_file_is_no_folder(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(InputError, match="which is a file"):
        Store(path, "draws")
