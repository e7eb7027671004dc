"""Files that are made to harm: each gets a sentence or a note, and nothing of it is run."""

from __future__ import annotations

import io
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.domain.errors import CheckpointUnreadable, TrainmasterError, Unavailable
from core.inspection.formats.pickles import read_pickle
from core.inspection.model import Unreadable
from core.inspection.pool import CheckpointRef, Inspectors
from core.storage.tree import Tree

FILES = Path(__file__).parent / "files"


@pytest.fixture(scope="module")
def inspectors() -> Iterator[Inspectors]:
    made = Inspectors()
    yield made
    made.close()


def safetensors(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


def torch_zip(pickled: bytes, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        for name, data in members.items():
            archive.writestr(f"a/data/{name}", data)
    return file.getvalue()


def laughs() -> bytes:
    """Lists of lists of lists: two to the power of 40 when they are walked, some hundred bytes when they are not."""
    deep: Any = []
    for _ in range(40):
        deep = [deep, deep]
    return pickle.dumps(deep, protocol=2)


def own_self() -> bytes:
    loop: list[Any] = []
    loop.append(loop)
    return pickle.dumps({"loop": loop}, protocol=2)


def huge_tensor() -> bytes:
    """A tensor of 10^13 elements in a storage of eight bytes."""
    pickled = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
        b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00\x8a\x08"
        + (10**13).to_bytes(8, "little")
        + b"\x85K\x01\x85\x89NtR."
    )
    return torch_zip(pickled, **{"0": b"\0" * 8})


CASES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a header of 2^60 bytes": ("a.safetensors", lambda: safetensors(b"{}", 2**60), "claims 1,152,921,504,606,846,976"),
    "a header behind the end": ("a.safetensors", lambda: safetensors(b"{}", 9999), "cut short"),
    "a header that is no JSON": ("a.safetensors", lambda: safetensors(b"{nonsense"), "is no JSON"),
    "a shape of more elements than 64 bits count": (
        "a.safetensors",
        lambda: safetensors(b'{"w":{"dtype":"F32","data_offsets":[0,4],"shape":[%d,%d,%d]}}' % (2**62, 2**62, 2**62)),
        "w has more elements",
    ),
    "a shape of a number of 4,000 digits": (
        "a.safetensors",
        lambda: safetensors(b'{"w":{"dtype":"F32","data_offsets":[0,4],"shape":[0,' + b"9" * 4000 + b"]}}"),
        "w has more elements",
    ),
    "a header nested deeply": ("a.safetensors", lambda: safetensors(b"[" * 100_000), "is no JSON"),
    "a header of many numbers": (
        "a.safetensors",
        lambda: safetensors(b'{"x":[' + b"1.5," * 14_000_000 + b"1]}"),
        "or too large",
    ),
    "a text of 2^40 bytes in a pickle": (
        "a.pt",
        lambda: torch_zip(b"\x80\x04\x8d" + struct.pack("<Q", 2**40)),
        "large",
    ),
    "a list in itself many times": ("a.pt", lambda: torch_zip(laughs()), "nested in itself too often"),
    "an integer of many digits": ("a.pt", lambda: torch_zip(b"\x80\x02\x8b\x00\x00\x00\x10" + b"1" * 99), "digits"),
    "a pickle of steps that lead nowhere": (
        "a.pt",
        lambda: torch_zip(b"\x80\x02]q\0" + b"h\0a" * 2_600_000 + b"."),
        "too many steps",
    ),
    "no pickle at all": ("a.pt", lambda: torch_zip(b"hello"), "damaged"),
    "an empty file": ("a.pt", lambda: b"", "is empty"),
    "words": ("a.pt", lambda: b"once upon a time", "no known format"),
    "half a zip": ("a.npz", lambda: b"PK\x03\x04" + b"\0" * 100, "no complete zip file"),
    "a zip whose directory is larger than itself": (
        "a.npz",
        lambda: b"PK\x03\x04" + b"PK\x05\x06" + b"\0" * 8 + struct.pack("<II", 2**31, 0) + b"\0\0",
        "more files than can be listed",
    ),
    "objects without an end in UBJSON": ("a.ubj", lambda: b"{" + b"i\x01a{" * 10_000, "no model of XGBoost"),
    "an index of nonsense": ("a.index", lambda: b"\0" * 40 + struct.pack("<Q", 0xDB4775248B80FB57), "damaged"),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_each_gets_a_sentence_and_the_next_look_is_as_before(tmp_path: Path, inspectors: Inspectors, case: str) -> None:
    name, make, words = CASES[case]
    (tmp_path / name).write_bytes(make())
    (tmp_path / "good.safetensors").write_bytes(safetensors(b"{}"))
    with pytest.raises(CheckpointUnreadable) as refused:
        inspectors.contents(CheckpointRef(Tree(tmp_path), name.removesuffix(".index")), caller="ann", deadline_s=250.0)
    assert words in refused.value.sentence, refused.value.sentence
    assert refused.value.sentence.endswith(".")
    assert inspectors.contents(CheckpointRef(Tree(tmp_path), "good.safetensors"), caller="ann")["tensors"] == []


def test_a_list_in_itself_is_shown_as_far_as_it_goes(look: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(torch_zip(own_self()))
    assert look("a.pt").tensors == []


def test_a_tensor_larger_than_its_storage_is_noted(look: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(huge_tensor())
    look("a.pt")
    (tensor,) = look.contents.tensors
    assert tensor.count == 10**13
    assert "shorter than its shape" in look.statistics(tensor.name)["note"]


def test_a_zip_bomb_takes_no_more_memory_than_a_chunk(tmp_path: Path, inspectors: Inspectors) -> None:
    """A gigabyte of zeros, which the process could not hold, in a megabyte."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**28,)})
    zeros = bytes(2**22)
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("w.npy", "w", force_zip64=True) as member,
    ):
        member.write(header.getvalue())
        for _ in range(2**30 // len(zeros)):
            member.write(zeros)
    assert (tmp_path / "a.npz").stat().st_size < 2**23
    (found,) = inspectors.statistics(
        CheckpointRef(Tree(tmp_path), "a.npz"), ["w"], caller="ann", budget_s=0.0, deadline_s=250.0
    )
    assert (found["count"], found["zero_share"]) == (2**28, 1.0)


def test_who_takes_too_long_is_ended(tmp_path: Path, inspectors: Inspectors) -> None:
    (tmp_path / "good.safetensors").write_bytes(safetensors(b"{}"))
    with pytest.raises(CheckpointUnreadable, match="took too long"):
        inspectors.contents(CheckpointRef(Tree(tmp_path), "good.safetensors"), caller="ann", deadline_s=0.0)
    assert inspectors.contents(CheckpointRef(Tree(tmp_path), "good.safetensors"), caller="ann")["tensors"] == []


def test_one_caller_looks_once_at_a_time_and_keeps_nobody_else_from_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.inspection.pool.WAIT_S", 0.0)
    zeros = np.zeros((1, 8), np.float32)
    np.savez(tmp_path / "a.npz", v=zeros, w=zeros)
    place = CheckpointRef(Tree(tmp_path), "a.npz")
    made = Inspectors()
    under_way = made.statistics(place, ["v", "w"], caller="mallory", budget_s=600.0)
    next(under_way)
    with pytest.raises(Unavailable):
        made.contents(place, caller="mallory")
    assert len(made.contents(place, caller="ann")["tensors"]) == 2
    under_way.close()  # type: ignore[attr-defined]
    assert len(made.contents(place, caller="mallory")["tensors"]) == 2
    made.close()


def test_a_long_list_comes_whole_and_its_process_stays(tmp_path: Path) -> None:
    names = [f"layer.{number}.w" for number in range(4_500)]
    entries = ",".join(f'"{name}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for name in names)
    (tmp_path / "a.safetensors").write_bytes(safetensors(f"{{{entries}}}".encode()))
    made = Inspectors()
    found = made.contents(CheckpointRef(Tree(tmp_path), "a.safetensors"), caller="ann")
    assert [tensor["name"] for tensor in found["tensors"]] == names
    assert found["format"] == "safetensors"
    assert len(made._idle) == 1
    made.close()


def test_a_list_that_is_too_long_gets_a_sentence(look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.inspection.model.TENSOR_LIMIT", 1)
    np.savez(tmp_path / "a.npz", v=np.zeros(1), w=np.zeros(1))
    with pytest.raises(Unreadable, match="more than 1 tensors"):
        look("a.npz")


def test_links_that_lead_out_are_not_followed(tmp_path: Path, inspectors: Inspectors) -> None:
    (tmp_path / "secret.safetensors").write_bytes(safetensors(b"{}", 2**60))
    inner = tmp_path / "output"
    (inner / "step-1").mkdir(parents=True)
    (inner / "a.safetensors").symlink_to(tmp_path / "secret.safetensors")
    (inner / "step-1" / "model.safetensors").symlink_to("../../secret.safetensors")
    for path in ("a.safetensors", "step-1", "../secret.safetensors"):
        with pytest.raises(TrainmasterError) as refused:
            inspectors.contents(CheckpointRef(Tree(inner), path), caller="ann")
        assert "claims" not in refused.value.sentence


def test_a_pipe_is_not_waited_for(tmp_path: Path, inspectors: Inspectors) -> None:
    os.mkfifo(tmp_path / "a.pt")
    with pytest.raises(CheckpointUnreadable):
        inspectors.contents(CheckpointRef(Tree(tmp_path), "a.pt"), caller="ann")


def test_a_process_that_died_while_it_waited_is_replaced(tmp_path: Path) -> None:
    made = Inspectors()
    (tmp_path / "good.safetensors").write_bytes(safetensors(b"{}"))
    place = CheckpointRef(Tree(tmp_path), "good.safetensors")
    made.contents(place, caller="ann")
    for process in made._idle:
        process.kill()
        process.wait()
    assert made.contents(place, caller="ann")["tensors"] == []
    made.close()


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir() if path.suffix != ".md"))
def test_files_with_wrong_bytes_give_a_sentence_and_nothing_else(look: Any, tmp_path: Path, name: str) -> None:
    chance = random.Random(7)
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    target = tmp_path / name
    target = target / "variables/variables.index" if target.is_dir() else target
    whole = target.read_bytes()
    opened = name.partition(".index")[0].partition(".data-")[0]
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(min(len(data), 4096))] = chance.randrange(256)
        target.write_bytes(bytes(data[: chance.choice((len(data), len(data), chance.randrange(len(data))))]))
        with suppress(Unreadable, MemoryError):
            look(opened)
            for tensor in look.contents.tensors[:20]:
                if tensor.count < 10**6:
                    assert isinstance(look.statistics(tensor.name)["note"], str)


def test_pickles_with_wrong_bytes_give_a_sentence_and_nothing_else() -> None:
    chance = random.Random(7)
    pickles = [pickle.dumps({"a": [1, 2.5, "x", b"y", (None, True)], "b": {1: {2}}}, protocol=p) for p in range(6)]
    for whole in pickles * 200:
        data = bytearray(whole)
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(Unreadable):
            read_pickle(io.BytesIO(bytes(data)))
