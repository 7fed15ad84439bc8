"""The file format: what goes in comes out, and anything else is refused with its reason."""

from __future__ import annotations

import json
import os
import pickle
import stat
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from reprior import io
from reprior.errors import FileFormatError, InputError

TENSORS = {"theta": torch.arange(6.0).reshape(3, 2), "mask": torch.tensor([True, False])}
META = {"names": ["a", "b"], "n": 3, "nested": {"z": None, "y": [1.5, True]}}


def rewrite_header(path: Path, change) -> None:
    """Writes the same tensors with a changed reprior header, as someone with an editor could."""
    with safe_open(path, framework="pt") as handle:
        header = json.loads(handle.metadata()["reprior"])
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    change(header)
    safetensors.torch.save_file(tensors, path, metadata={"reprior": json.dumps(header)})


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_round_trip_is_exact(tmp_path, dtype, shape):
    tensor = (10 * torch.rand(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    io.write(tmp_path / "file", "thing", {"t": tensor}, META)
    back = io.read(tmp_path / "file", "thing")
    assert back.kind == "thing"
    assert back.meta == META
    assert back.tensors["t"].dtype == dtype
    assert back.tensors["t"].shape == tensor.shape
    assert torch.equal(back.tensors["t"], tensor)


def test_numbers_in_meta_come_back_exactly(tmp_path):
    meta = {"x": [0.1, 1 / 3, 1e-300, 2**60, -0.0, float("inf")]}
    path = io.write(tmp_path / "file", "thing", {}, meta)
    assert io.read(path, "thing").meta == meta


def test_views_tied_and_trainable_tensors_are_saved_as_values(tmp_path):
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    path = io.write(tmp_path / "file", "thing", {"w": weight, "tied": weight, "t": weight.T}, {})
    back = io.read(path, "thing").tensors
    assert torch.equal(back["w"], weight)
    assert torch.equal(back["tied"], weight)
    assert torch.equal(back["t"], weight.T)
    assert not back["w"].requires_grad


def test_tensors_outlive_their_file(tmp_path):
    path = io.write(tmp_path / "file", "thing", TENSORS, META)
    back = io.read(path, "thing")
    with open(path, "r+b") as stream:
        stream.truncate(0)
    assert torch.equal(back.tensors["theta"], TENSORS["theta"])


def test_suffix_folders_and_bytes(tmp_path):
    first = io.write(tmp_path / "new" / "folder" / "file", "thing", TENSORS, META)
    assert first == tmp_path / "new" / "folder" / "file.safetensors"
    second = io.write(str(tmp_path / "other.safetensors"), "thing", dict(reversed(TENSORS.items())), META)
    assert second.name == "other.safetensors"
    assert first.read_bytes() == second.read_bytes()
    assert io.header_of(tmp_path / "other")["kind"] == "thing"
    # A folder of the same name is not in the way.
    (tmp_path / "other").mkdir()
    assert io.read(tmp_path / "other", "thing").meta == META


def test_file_is_readable_by_others_as_the_umask_says(tmp_path):
    old = os.umask(0o022)
    try:
        path = io.write(tmp_path / "file", "thing", TENSORS, META)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    path = io.write(tmp_path / "file", "thing", TENSORS, META)
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        io.write(path, "thing", {"theta": torch.zeros(5)}, {})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["file.safetensors"]


def test_a_file_replaced_while_it_is_read_is_the_old_one_or_the_new_one(tmp_path):
    first, second = (
        io.write(tmp_path / name, "checkpoint", {"a": torch.full((200_000,), float(step))}, {"step": step})
        for step, name in enumerate(("first", "second"))
    )
    contents = [first.read_bytes(), second.read_bytes()]
    target = tmp_path / "run.safetensors"
    target.write_bytes(contents[0])
    stop = threading.Event()

    def replace() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            other = tmp_path / "other"
            other.write_bytes(contents[turn % 2])
            os.replace(other, target)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        seen = {io.read(target, "checkpoint").meta["step"] for _ in range(300)}
        assert {io.header_of(target)["kind"] for _ in range(300)} == {"checkpoint"}
    finally:
        stop.set()
        writer.join()
    assert seen == {0, 1}


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors"):
        io.read(tmp_path / "nothing", "thing")


def test_every_truncation_is_refused(tmp_path):
    path = io.write(tmp_path / "file", "thing", TENSORS, META)
    data = path.read_bytes()
    for size in [*range(0, len(data), 7), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(FileFormatError, match=r"truncated|damaged"):
            io.read(path, "thing")


def test_flipped_bits_are_refused(tmp_path):
    path = io.write(tmp_path / "file", "thing", {"theta": torch.arange(3.0)}, {"n": 3})
    data = path.read_bytes()
    for index in range(len(data)):
        for bit in (0, 5):
            changed = bytearray(data)
            changed[index] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(FileFormatError):
                io.read(path, "thing")


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "file.safetensors"
    path.write_text("theta,x\n1,2\n")
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        io.read(path, "thing")

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trapped"),)

    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        io.read(path, "thing")
    torch.save(TENSORS, path)
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        io.read(path, "thing")
    assert not (tmp_path / "trapped").exists()

    safetensors.torch.save_file(TENSORS, path, metadata={"format": "pt"})
    with pytest.raises(FileFormatError, match="reprior did not write it"):
        io.read(path, "thing")


def test_newer_version_is_named(tmp_path):
    path = io.write(tmp_path / "file", "thing", TENSORS, META)
    rewrite_header(path, lambda header: header.update(version=7))
    with pytest.raises(FileFormatError, match=r"version 7.*up to version 1.*Upgrade"):
        io.read(path, "thing")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["meta"].update(n=4),
        lambda header: header.update(kind="other"),
        lambda header: header.update(digest="0" * 64),
        lambda header: header.pop("meta"),
        lambda header: header.pop("version"),
        lambda header: header.update(format="else"),
    ],
)
def test_edited_header_is_refused(tmp_path, change):
    path = io.write(tmp_path / "file", "thing", TENSORS, META)
    rewrite_header(path, change)
    with pytest.raises(FileFormatError, match="altered"):
        io.read(path, ("thing", "other"))


def test_edited_tensors_are_refused(tmp_path):
    path = io.write(tmp_path / "file", "thing", TENSORS, META)
    with safe_open(path, framework="pt") as handle:
        metadata = handle.metadata()
    for tensors in (
        {**TENSORS, "theta": TENSORS["theta"] + 1},
        {**TENSORS, "theta": TENSORS["theta"].reshape(2, 3)},
        {"theta2": TENSORS["theta"], "mask": TENSORS["mask"]},
        {"theta": TENSORS["theta"]},
        {**TENSORS, "more": torch.zeros(0)},
    ):
        safetensors.torch.save_file(tensors, path, metadata=metadata)
        with pytest.raises(FileFormatError, match="altered"):
            io.read(path, "thing")


def test_wrong_kind_names_both(tmp_path):
    path = io.write(tmp_path / "file", "simulations", TENSORS, META)
    with pytest.raises(FileFormatError, match="holds 'simulations', but 'posterior' is needed"):
        io.read(path, "posterior")
    assert io.read(path, ("posterior", "simulations")).kind == "simulations"


def test_what_cannot_be_saved_is_refused_before_writing(tmp_path):
    with pytest.raises(InputError, match=r"meta\['a'\] has the key 1"):
        io.write(tmp_path / "file", "thing", {}, {"a": {1: 2}})
    with pytest.raises(InputError, match=r"meta\['a'\]\[0\] is a Tensor"):
        io.write(tmp_path / "file", "thing", {}, {"a": [torch.zeros(1)]})
    with pytest.raises(InputError, match=r"tensors\['a'\] must be a torch tensor, not list"):
        io.write(tmp_path / "file", "thing", {"a": [1.0]}, {})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="dense"):
        io.write(tmp_path / "file", "thing", {"a": torch.eye(2).to_sparse()}, {})
    assert list(tmp_path.iterdir()) == []
