"""Path safety over hostile paths and link farms, judged by the kernel's own ``openat2(RESOLVE_BENEATH)``."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.domain.errors import InvalidRequest, NotFound
from core.storage.tree import Tree, split_path

NAMES = ["a", "b", "c", "d"]
SECRET = b"outside"

_OPENAT2 = 437
_RESOLVE_BENEATH = 0x08


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def kernel_read(root: Path, path: str) -> bytes | None:
    """What the kernel reads beneath ``root``; ``None``: it refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    how = _OpenHow(os.O_RDONLY | os.O_NONBLOCK, 0, _RESOLVE_BENEATH)
    top = os.open(root, os.O_RDONLY)
    try:
        fd = libc.syscall(_OPENAT2, top, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
        if fd < 0:
            return None
        try:
            return os.read(fd, 100)
        except IsADirectoryError:
            return None
        finally:
            os.close(fd)
    finally:
        os.close(top)


def has_openat2() -> bool:
    if platform.system() != "Linux":
        return False
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x").write_bytes(b"1")
        return kernel_read(Path(folder), "x") == b"1"


def our_read(tree: Tree, path: str) -> bytes | None:
    try:
        fd = tree.open_file(path)
    except (NotFound, InvalidRequest):
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read()


relative = st.lists(st.sampled_from([*NAMES, *NAMES, ".."]), min_size=1, max_size=6).map("/".join)
targets = st.one_of(relative, relative.map(lambda path: "/" + path), st.just("/"), st.just("../../../../../outside"))
plain = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
farms = st.lists(st.tuples(plain, st.one_of(st.none(), st.just(b"inside"), targets)), max_size=14)


def build(root: Path, farm: list[tuple[str, bytes | str | None]]) -> None:
    """Folders (None), files (bytes) and links (str); what does not fit together is left out."""
    for path, what in farm:
        place = root / path
        try:
            if os.path.realpath(place.parent) != str(place.parent) or place.is_symlink() or place.exists():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if what is None:
                place.mkdir()
            elif isinstance(what, bytes):
                place.write_bytes(what)
            else:
                place.symlink_to(what)
        except OSError:
            continue


@pytest.mark.skipif(not has_openat2(), reason="the judge is Linux' openat2, which is not here")
@settings(max_examples=300, deadline=None)
@given(farm=farms, paths=st.lists(plain, min_size=1, max_size=6))
@example(farm=[("a", "b"), ("b", "../volume/c"), ("c", b"inside")], paths=["a", "b"])
@example(farm=[("a/b", None), ("c", "a/b/../../d"), ("d", b"inside")], paths=["c"])
def test_a_file_is_read_exactly_when_the_kernel_finds_it_beneath_the_root(
    farm: list[tuple[str, bytes | str | None]], paths: list[str]
) -> None:
    top = Path(tempfile.mkdtemp()).resolve()
    try:
        (top / "outside").write_bytes(SECRET)
        root = top / "volume"
        root.mkdir()
        build(root, farm)
        for path in [*paths, *(path for path, _ in farm)]:
            ours = our_read(Tree(root), path)
            assert ours != SECRET
            assert ours == kernel_read(root, path)
    finally:
        shutil.rmtree(top)


@settings(max_examples=500, deadline=None)
@given(
    st.text(max_size=60)
    | relative
    | st.lists(st.sampled_from(["..", ".", "", "a", "\0", "\\", "%2e%2e", "~"])).map("/".join)
)
def test_what_the_check_lets_through_stays_below_by_its_text(path: str) -> None:
    try:
        names = split_path(path)
    except InvalidRequest:
        return
    assert ".." not in names
    joined = os.path.normpath("/".join(("/volume", *names)))
    assert joined == "/volume" or joined.startswith("/volume/")


def named(root: Path, path: str) -> Path | None:
    """The last name of ``path`` in the folder that its way really leads to; ``None``: the way leads nowhere."""
    way = (root / path).parent
    try:
        # ``realpath`` alone finds a place behind a circle of links and behind `file/..`, where the kernel finds none.
        way.stat()
    except OSError:
        return None
    return Path(os.path.realpath(way)) / Path(path).name


@settings(max_examples=150, deadline=None)
@given(farm=farms, victim=plain)
@example(farm=[("a", "a/..")], victim="a/a")
@example(farm=[("a", b"inside"), ("b", "a/.."), ("c", None)], victim="b/c")
def test_deleting_touches_nothing_outside_of_what_was_named(
    farm: list[tuple[str, bytes | str | None]], victim: str
) -> None:
    top = Path(tempfile.mkdtemp()).resolve()
    try:
        (top / "outside").write_bytes(SECRET)
        root = top / "volume"
        root.mkdir()
        build(root, farm)
        doomed = named(root, victim)
        others = {p for p in root.rglob("*") if doomed is None or not p.is_relative_to(doomed)}
        try:
            Tree(root).delete(victim)
        except NotFound:
            pass  # a link on the way leads out
        else:
            assert doomed is None or not os.path.lexists(doomed) or not doomed.is_relative_to(root)
        assert (top / "outside").read_bytes() == SECRET
        assert all(os.path.lexists(p) for p in others)
    finally:
        shutil.rmtree(top)
