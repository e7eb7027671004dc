from __future__ import annotations

import os
from pathlib import Path

import pytest
from trainmaster_runtime import cgroups

V2_FILES = ("cgroup.procs", "memory.max", "memory.swap.max", "memory.events", "pids.max", "cpu.max")


@pytest.fixture
def version_2(tmp_path, monkeypatch):
    """A hierarchy whose slice hands controllers out and whose service, where we are, does not."""
    service = tmp_path / "user.slice/trainmaster.service"
    service.mkdir(parents=True)
    for folder, handed_out in ((tmp_path, "cpu memory pids"), (tmp_path / "user.slice", "memory pids"), (service, "")):
        (folder / "cgroup.subtree_control").write_text(handed_out)
        (folder / "cgroup.procs").touch()

    mkdir = os.mkdir

    def make(folder, *options):
        """As the kernel makes a group: with its files."""
        mkdir(folder, *options)
        for name in V2_FILES:
            (Path(folder) / name).write_text("oom 3\noom_kill 2\n" if name == "memory.events" else "")

    monkeypatch.setattr(cgroups, "own_groups", lambda: {"unified": str(service)})
    monkeypatch.setattr(os, "mkdir", make)
    return tmp_path


def test_the_nearest_ancestor_that_hands_out_memory_is_taken(version_2):
    groups = cgroups.make_groups("trainmaster-x")
    assert groups.folders == [str(version_2 / "user.slice/trainmaster-x")]
    assert groups.has_memory


def test_limits_are_written_as_the_kernel_reads_them(version_2):
    groups = cgroups.make_groups("trainmaster-x")
    groups.limit(cpu_milli=1500, memory_bytes=1 << 30, pids=100)
    folder = version_2 / "user.slice/trainmaster-x"
    assert (folder / "memory.max").read_text() == str(1 << 30)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "100"
    assert groups.limited == ["memory", "pids"]  # the slice hands out no cpu


def test_what_is_not_stated_is_not_limited(version_2):
    groups = cgroups.make_groups("trainmaster-x")
    groups.limit(cpu_milli=None, memory_bytes=None, pids=None)
    assert groups.limited == []
    assert (version_2 / "user.slice/trainmaster-x/memory.max").read_text() == ""


def test_kills_before_the_start_are_not_ours(version_2):
    groups = cgroups.make_groups("trainmaster-x")
    assert groups.oom_kills() == 0
    (version_2 / "user.slice/trainmaster-x/memory.events").write_text("oom_kill 5\n")
    assert groups.oom_kills() == 3


def test_without_groups_all_of_it_is_harmless():
    groups = cgroups.Groups({}, 1)
    groups.limit(cpu_milli=1000, memory_bytes=1, pids=1)
    groups.join()
    groups.close()
    assert (groups.limited, groups.folders, groups.oom_kills(), groups.has_memory) == ([], [], 0, False)
