from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from core.domain.errors import Conflict, InvalidRequest, NotFound, TrainmasterError, Unavailable
from core.storage import tree as trees
from core.storage.tree import LeavesVolume, Tree, split_path

SECRET = b"outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_bytes(SECRET)
    top = tmp_path / "volume"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").write_bytes(b"inside")
    return top


def read(tree: Tree, path: str) -> bytes:
    fd = tree.open_file(path)
    with os.fdopen(fd, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    "path", ["../outside", "a/../../outside", "/etc/passwd", "a/..", "..", "a\0b", "x" * 256, "a/" * 200, "\ud800"]
)
def test_a_hostile_path_is_refused_before_the_disk_is_touched(path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        split_path(path)
    assert caught.value.field == "path"


@pytest.mark.parametrize("path", ["a/b/file", "./a//b/./file", "a/b/file/"])
def test_a_file_inside_is_read(root: Path, path: str) -> None:
    assert read(Tree(root), path) == b"inside"


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "../../outside", "a/../../outside", "/", ".."])
def test_a_link_that_leaves_the_volume_is_not_followed(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    with pytest.raises(LeavesVolume):
        Tree(root).open_file("link")


def test_a_link_inside_the_volume_is_followed(root: Path) -> None:
    (root / "link").symlink_to("a/b/../b/file")
    (root / "folder").symlink_to("a")
    assert read(Tree(root), "link") == b"inside"
    assert read(Tree(root), "folder/b/file") == b"inside"


def test_a_tree_below_refuses_links_to_its_neighbours(root: Path) -> None:
    (root / "c").mkdir()
    (root / "c" / "link").symlink_to("../a/b/file")
    assert read(Tree(root), "c/link") == b"inside"
    with pytest.raises(LeavesVolume):
        Tree(root).below("c").open_file("link")


def test_no_link_leads_from_a_tree_below_another_out_of_the_other(root: Path) -> None:
    (root / "c").mkdir()
    (root / "c" / "out").symlink_to("../a")
    (root / "a" / "in").symlink_to("b")
    assert read(Tree(root).below("a").below("in"), "file") == b"inside"
    with pytest.raises(LeavesVolume):
        Tree(root).below("c").below("out").open_file("b/file")
    again = Tree(**Tree(root).below("c").below("out").to_json())  # in another process
    with pytest.raises(LeavesVolume):
        again.open_file("b/file")


def test_links_in_a_circle_end_as_not_found(root: Path) -> None:
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    with pytest.raises(NotFound, match="links"):
        Tree(root).open_file("x")


def test_a_pipe_is_refused_without_waiting_for_its_writer(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(InvalidRequest, match="not a file"):
        Tree(root).open_file("pipe")


def test_a_missing_volume_says_that_it_is_away_and_not_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        Tree(tmp_path / "gone", label="Volume output").stat()
    assert "Volume output is not there" in caught.value.sentence
    assert str(tmp_path) not in caught.value.sentence


def test_no_descriptor_is_left_open_whatever_happens(root: Path) -> None:
    (root / "link").symlink_to("../outside")
    before = len(list(Path("/proc/self/fd").iterdir()))
    tree = Tree(root, "a")
    for path in ("b/file", "b/missing", "missing/x", "b", "../x", "b/file/x"):
        try:
            os.close(tree.open_file(path))
        except TrainmasterError:
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # fewer: of other tests, by the garbage collector


def test_a_folder_swapped_for_a_link_while_we_walk_never_shows_the_outside(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    (outside / "b").mkdir(parents=True)
    (outside / "b" / "file").write_bytes(SECRET)
    (root / "trap").symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            (root / "a").rename(root / "t")
            (root / "trap").rename(root / "a")
            (root / "a").rename(root / "trap")
            (root / "t").rename(root / "a")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = set()
    try:
        for _ in range(3000):
            try:
                seen.add(read(Tree(root), "a/b/file"))
            except NotFound:
                continue
    finally:
        done.set()
        swapper.join()
    assert seen <= {b"inside"}


def test_folders_are_made_with_mode_whatever_the_umask(root: Path) -> None:
    old = os.umask(0o077)
    try:
        assert Tree(root).make_folder("out/p/j", mode=0o2775)
    finally:
        os.umask(old)
    assert stat.S_IMODE((root / "out" / "p" / "j").stat().st_mode) == 0o2775
    assert not Tree(root).make_folder("out/p/j")


def test_a_folder_is_not_made_through_a_link_that_leaves(root: Path, tmp_path: Path) -> None:
    (root / "out").symlink_to(tmp_path)
    with pytest.raises(LeavesVolume):
        Tree(root).make_folder("out/job")
    assert not (tmp_path / "job").exists()


def test_a_file_in_the_way_of_a_folder_is_a_conflict(root: Path) -> None:
    with pytest.raises(Conflict):
        Tree(root).make_folder("a/b/file")


def test_deleting_removes_links_and_never_what_they_lead_to(root: Path, tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "me").write_bytes(b"1")
    (root / "a" / "link").symlink_to(tmp_path / "keep")
    (root / "a" / "b" / "up").symlink_to("../..")
    (root / "other").mkdir()
    Tree(root).delete("a")
    assert not (root / "a").exists()
    assert (root / "other").is_dir()
    assert (tmp_path / "keep" / "me").read_bytes() == b"1"
    Tree(root).delete("a")  # again: harmless
    Tree(root).delete("never/was")


def test_deleting_a_link_leaves_its_target(root: Path) -> None:
    (root / "link").symlink_to("a")
    Tree(root).delete("link")
    assert not (root / "link").is_symlink()
    assert (root / "a" / "b" / "file").exists()


def test_deleting_a_very_deep_tree_needs_no_recursion(root: Path) -> None:
    here = os.open(root / "a", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=here)
        next_fd = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = next_fd
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    Tree(root).delete("a")
    assert list(root.iterdir()) == []


def test_the_trees_own_top_is_emptied_and_stays(root: Path) -> None:
    Tree(root, "a").delete("")
    assert list((root / "a").iterdir()) == []


def test_inodes_of_fuse_are_not_relied_on(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "40 22 0:50 / /mnt/far rw - fuse.sshfs far: rw\n"
        "41 22 0:51 / /mnt/nas rw master:2 - nfs4 nas:/x rw\n"
    )
    monkeypatch.setattr(trees, "MOUNT_TABLE", mounts)
    assert [trees.has_lasting_inodes(os.makedev(*numbers)) for numbers in ((8, 1), (0, 50), (0, 51), (9, 9))] == [
        True,
        False,
        True,
        False,
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_is_given_away_without_what_is_in_it_and_none_outside(root: Path) -> None:
    (root / "own" / "inner").mkdir(parents=True)
    (root / "link").symlink_to(root.parent)
    tree = Tree(root)
    tree.give_folder("own", (1234, 1235))
    with pytest.raises(LeavesVolume):
        tree.give_folder("link", (1, 1))
    owners = [(one.stat().st_uid, one.stat().st_gid) for one in (root / "own", root / "own" / "inner")]
    assert owners == [(1234, 1235), (0, 0)]
