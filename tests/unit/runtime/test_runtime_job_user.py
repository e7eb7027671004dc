"""The job's user: what the runtime gives to it, writes as it and takes from it, and what its commands may not do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trainmaster_runtime.process import job_user, seccomp
from trainmaster_runtime.view import closed_folders

USER = 271_828
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")


def run(code: str, *args: object) -> dict:
    """What ``code`` prints as JSON, run as root in a process of its own."""
    setup = "import ctypes, json, os, sys, threading\nfrom trainmaster_runtime.process import job_user\n"
    done = subprocess.run(
        [sys.executable, "-c", setup + code, *map(str, args)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@as_root
def test_the_runtime_writes_where_the_job_may_and_reads_everywhere(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, USER, USER)
    (tmp_path / "secret").write_text("roots")
    (tmp_path / "secret").chmod(0o600)
    (own / "link").symlink_to(tmp_path / "secret")
    code = """
top = sys.argv[1]
job_user.write_as(int(sys.argv[2]), [])
found = {}
def tried(name, work):
    try:
        found[name] = work()
    except OSError as error:
        found[name] = type(error).__name__
tried("through a link", lambda: open(top + "/own/link", "a").write("x"))
tried("new file", lambda: open(top + "/new", "w").write("x"))
tried("own file", lambda: open(top + "/own/log", "w").write("x"))
with open(top + "/own/link", "rb") as stream:
    tried("the owner of what is read", lambda: job_user.check_owner(stream.fileno()))
with open(top + "/own/log", "rb") as stream:
    tried("the owner of its own", lambda: job_user.check_owner(stream.fileno()))
with job_user.as_root():
    with job_user.as_root():
        pass
    tried("as root", lambda: open(top + "/root", "w").write("x"))
tried("after it", lambda: open(top + "/again", "w").write("x"))
print(json.dumps(found))
"""
    assert run(code, tmp_path, USER) == {
        "through a link": "PermissionError",
        "new file": "PermissionError",
        "own file": 1,
        "the owner of what is read": "PermissionError",
        "the owner of its own": None,
        "as root": 1,
        "after it": "PermissionError",
    }
    assert (tmp_path / "secret").read_text() == "roots"
    status = (own / "log").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (USER, USER, 0o660)
    assert (tmp_path / "root").stat().st_uid == 0


@as_root
def test_what_has_become_the_user_stays_it(tmp_path: Path) -> None:
    code = """
job_user.write_as(int(sys.argv[1]), [7])
job_user.become_user()
found = {"ids": [*os.getresuid(), *os.getresgid()], "groups": os.getgroups()}
for name, work in (("root", lambda: os.setuid(0)), ("fork", lambda: os.waitpid(os.fork() or os._exit(3), 0)[1])):
    try:
        found[name] = work()
    except OSError as error:
        found[name] = type(error).__name__
thread = threading.Thread(target=lambda: found.update(thread=True))
thread.start()
thread.join()
libc = ctypes.CDLL(None, use_errno=True)
for name, number in (("keyctl", 250), ("bpf", 321), ("mount", 165), ("io_uring_setup", 425), ("unshare", 272)):
    found[name] = [libc.syscall(number, 0x10000000, 0, 0, 0, 0), ctypes.get_errno()]
found["ptrace"] = libc.ptrace(0, 0, 0, 0)
print(json.dumps(found))
"""
    found = run(code, USER)
    calls = {name: found.pop(name) for name in ("keyctl", "bpf", "mount", "io_uring_setup", "unshare")}
    assert found == {
        "ids": [USER] * 6,
        "groups": [7],
        "root": "PermissionError",
        "fork": 3 << 8,
        "thread": True,
        "ptrace": 0,
    }
    if os.uname().machine == "x86_64":
        assert set(map(tuple, calls.values())) == {(-1, 1)}


@as_root
def test_a_tree_is_given_without_following_links(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("not of the tree")
    top = tmp_path / "top"
    (top / "deep").mkdir(parents=True)
    (top / "deep" / "file").write_text("")
    (top / "deep" / "file").chmod(0o4755)
    (top / "link").symlink_to(other)
    os.link(other, top / "deep" / "second name")
    os.mkfifo(top / "pipe")
    job_user._give_tree(str(top), USER, USER + 1)
    file, folder = (top / "deep" / "file").stat(), top.stat()
    assert (file.st_uid, file.st_gid, file.st_mode & 0o7777) == (USER, USER + 1, 0o775)
    assert (folder.st_uid, folder.st_gid, folder.st_mode & 0o2070) == (USER, USER + 1, 0o2070)
    assert other.stat().st_uid == 0


def test_folders_that_not_everyone_may_enter(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    (tmp_path / "a").chmod(0o700)
    found = closed_folders([str(inner), str(inner / "d"), "/usr/bin/env"])
    assert len(found) == 1
    assert str(inner).startswith(found[0])


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_filter_ends_in_an_answer(machine: str) -> None:
    program = seccomp.program(machine)
    for at, (code, if_true, if_false, _) in enumerate(program):
        assert code != 0x06 or if_true == if_false == 0
        assert at + 1 + max(if_true, if_false) < len(program) or code == 0x06
    assert program[-1][0] == 0x06
    assert seccomp.program("another") == []
