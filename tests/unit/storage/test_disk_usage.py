"""Disk usage of real trees, compared with du, and of trees that change during the walk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from core.storage.disk_usage import DiskUsage
from core.storage.tree import Tree, empty_folder


def measure(root: Path, path: str = "", pace: Callable[[int], None] = lambda _: None, batch_size: int = 256) -> int:
    return DiskUsage(pace, batch_size).measure(Tree(root), path)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def du(folder: Path) -> int:
    answer = subprocess.run(["du", "-s", "--block-size=1", folder], capture_output=True, text=True, check=True).stdout
    return int(answer.split()[0])


def fill(file: Path, size: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(size))


def test_it_counts_as_du_does(tmp_path: Path) -> None:
    for number in range(20):
        fill(tmp_path / f"job-{number}" / "checkpoints" / "a" / "model.pt", 10_000 + 5_000 * number)
        (tmp_path / f"job-{number}" / "empty").mkdir()
    assert measure(tmp_path) == du(tmp_path) > 20 * 10_000


def test_a_sparse_file_counts_what_is_allocated(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b"x" * 8192)
        file.truncate(2**40)
    assert measure(tmp_path) == du(tmp_path) < 2**20


def test_hard_links_count_once_and_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    fill(root / "a" / "model.pt", 100_000)
    fill(other / "data", 10**6)
    alone = measure(root)
    for number in range(10):
        os.link(root / "a" / "model.pt", root / f"kept-{number}.pt")
    (root / "out").symlink_to(other)
    (root / "file").symlink_to(other / "data")
    assert alone <= measure(root) < alone + 50_000
    (root / "sub").symlink_to("a")
    assert measure(root, "sub") == 0
    usage = DiskUsage(lambda _: None)
    assert usage.measure(Tree(root), "a") > 100_000
    assert usage.measure(Tree(root)) < 50_000  # counted before


def test_a_tree_of_any_depth_is_counted_with_few_descriptors(tmp_path: Path) -> None:
    depth = 1_500
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        os.mkdir("leaf", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    deepest = os.open("model.pt", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(deepest, os.urandom(10**6))
    os.close(deepest)
    os.close(fd)
    opened = descriptors()
    assert measure(tmp_path) >= 10**6
    assert descriptors() == opened
    during: list[int] = []
    measure(tmp_path, pace=lambda _: during.append(descriptors()))
    assert max(during) <= opened + 5
    with Tree(tmp_path).open_folder() as top:  # pytest's own removal of so deep a tree recurses
        empty_folder(top)


@pytest.mark.parametrize("change", ["delete", "move"])
def test_folders_that_vanish_or_move_during_the_walk_are_left_out(tmp_path: Path, change: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    for number in range(6):
        fill(root / f"job-{number}" / "a" / "b" / "model.pt", 50_000)
    fill(outside / "secret" / "data", 10**6)
    calls = 0

    def disturb(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 9:  # inside of the first job's folders
            for number in range(6):
                if change == "delete":
                    shutil.rmtree(root / f"job-{number}" / "a", ignore_errors=True)
                else:
                    (root / f"job-{number}" / "a").rename(outside / f"a-{number}")
            fill(root / "job-new" / "model.pt", 50_000)

    opened = descriptors()
    assert measure(root, pace=disturb, batch_size=1) < 6 * 50_000
    assert calls > 9
    assert descriptors() == opened


def test_the_pace_can_end_the_walk_and_leaves_no_descriptor(tmp_path: Path) -> None:
    for number in range(30):
        fill(tmp_path / f"job-{number}" / "a" / "model.pt", 1)

    def stop(entries: int) -> None:
        assert entries == 7
        raise InterruptedError

    opened = descriptors()
    with pytest.raises(InterruptedError):
        measure(tmp_path, pace=stop, batch_size=7)
    assert descriptors() == opened


def test_what_is_not_there_is_nothing_and_folders_that_may_not_be_read_are_counted(tmp_path: Path) -> None:
    assert measure(tmp_path, "vision") == 0
    fill(tmp_path / "closed" / "model.pt", 1)
    (tmp_path / "closed").chmod(0)
    usage = DiskUsage(lambda _: None)
    usage.measure(Tree(tmp_path))
    (tmp_path / "closed").chmod(0o755)
    assert usage.unreadable == (0 if os.geteuid() == 0 else 1)
