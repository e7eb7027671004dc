"""Projects do not reach each other's processes, secrets and files, nor the platform's, where it runs as root."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainmaster import Client

from core.job_users import why_not

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(why_not(200_000, 265_535) is not None, reason="needs root with the right to mount"),
]

SECRET = "alices-secret-8d1f0c"
ATTACK = """
import ctypes, glob, json, os, signal, sys
home, victim, output, secret = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4][::-1].encode()

def tried(work):
    try:
        return work()
    except (FileNotFoundError, PermissionError):
        return "refused"

def environments():
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            found.append(secret in open(path, "rb").read())
        except OSError:
            pass
    return any(found)

def through(path):
    # /proc/<pid>/root leads into the view of another process.
    return [tried(lambda: open(f"/proc/{pid}/root{path}").read()) for pid in (1, victim, os.getppid())]

json.dump({
    "uid": os.getuid(),
    "groups": os.getgroups(),
    "environ": environments(),
    "processes": victim in [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "token": tried(lambda: open(home + "/token").read()),
    "token through proc": [text for text in through(home + "/token") if text.startswith("tm_")],
    "database": tried(lambda: open(home + "/trainmaster.sqlite3", "rb").read(16)),
    "output": tried(lambda: open(output + "/private.txt").read()),
    "output through proc": [text for text in through(output + "/private.txt") if "mine" in text],
    "kill": tried(lambda: os.kill(victim, signal.SIGKILL)),
    "rights": [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "NoNewPrivs"))],
}, open("/data/output/result.json", "w"), default=str)
"""


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, args)]


@pytest.fixture(scope="module")
def home(platform: Any) -> Path:
    return Path(platform.home).resolve()


class Tenant:
    """A user with a project of its own."""

    def __init__(self, platform: Any, name: str) -> None:
        self.project = f"{name}-project"
        platform.client.create_user(name)
        platform.client.create_project(self.project)
        platform.client.set_member(self.project, name, "member")
        self.client = Client(platform.url, token=platform.client.create_token(name, user=name).token)
        self.admin = platform.client

    def submit(self, name: str, command: list[str], **fields: Any) -> Any:
        return self.client.submit_job({"name": name, "project": self.project, "command": command, **fields})

    def run(self, name: str, command: list[str], **fields: Any) -> Any:
        job = self.client.wait_for_job(self.submit(name, command, **fields).id, timeout_s=120)
        assert job.state == "succeeded", job
        return job


@pytest.fixture(scope="module")
def tenants(platform: Any) -> Iterator[tuple[Tenant, Tenant]]:
    both = (Tenant(platform, "alice"), Tenant(platform, "bob"))
    yield both
    for tenant in both:
        tenant.client.close()


def output_of(home: Path, job: Any) -> Path:
    found = [path for path in (home / "output").rglob(job.id) if path.parent.name == "logs"]
    return found[0].parents[2]


def test_a_project_reaches_nothing_of_another_one(home: Path, tenants: Any, platform: Any, eventually: Any) -> None:
    alice, bob = tenants
    platform.client.set_secret(alice.project, "API_KEY", SECRET)
    code = """
import os, time
open("/data/output/private.txt", "w").write("mine")
open("/data/output/pid", "w").write(str(os.getpid()))
while not os.path.exists("/data/output/end"): time.sleep(0.1)
"""
    victim = alice.submit("victim", python(code), secrets=["API_KEY"])
    path = eventually(lambda: list((home / "output").rglob("pid")), within_s=60, what="alice's job runs")[0]
    pid = int(eventually(path.read_text, within_s=10, what="its pid"))
    assert SECRET.encode() in Path(f"/proc/{pid}/environ").read_bytes()

    attacker = bob.run("attacker", python(ATTACK, home, pid, path.parent, SECRET[::-1]))
    result = json.loads((output_of(home, attacker) / "result.json").read_text())
    (path.parent / "end").touch()
    assert alice.client.wait_for_job(victim.id, timeout_s=60).state == "succeeded"
    assert result == {
        "uid": result["uid"],
        "groups": [],
        "environ": False,
        "processes": False,
        "token": "refused",
        "token through proc": [],
        "database": "refused",
        "output": "refused",
        "output through proc": [],
        "kill": "refused",
        "rights": ["0000000000000000", "1"],
    }
    assert result["uid"] not in (0, path.stat().st_uid)
    assert path.parent.stat().st_mode & 0o007 == 0


def test_members_use_files_as_before(home: Path, tenants: Any, platform: Any, tmp_path: Path) -> None:
    """Downloads, uploads and deletions by the API, another project's folder by membership, and a shared volume."""
    alice, bob = tenants
    code = "open('/data/output/made.txt', 'w').write('made'); open('/data/all/shared.txt', 'a').write('x')"
    shared = {"volume": "data", "at": "/data/all", "read_only": False}
    first = alice.run("maker", python(code), mounts=[shared])
    alice.client.download_file(first.id, "made.txt", tmp_path / "made.txt")
    assert (tmp_path / "made.txt").read_text() == "made"

    output = output_of(home, first)
    platform.client.set_member(alice.project, "bob", "member")
    theirs = {"volume": "output", "path": str(output.relative_to(home / "output")), "at": "/data/theirs"}
    code = """
print(open("/data/theirs/made.txt").read())
open("/data/theirs/added.txt", "w").write("by bob")
open("/data/all/shared.txt", "a").write("y")
"""
    second = bob.run("taker", python(code), mounts=[{**theirs, "read_only": False}, shared])
    assert (home / "data/shared.txt").read_text() == "xy"
    added = (output / "added.txt").stat()
    assert added.st_uid == output_of(home, second).stat().st_uid != output.stat().st_uid == added.st_gid

    read = python("print(open('/data/theirs/added.txt').read()); open('/data/theirs/made.txt', 'w')")
    third = bob.client.wait_for_job(
        bob.submit("reader", read, mounts=[{**theirs, "read_only": True}]).id, timeout_s=120
    )
    assert third.state == "failed"
    alice.client.delete_job(first.id, files=True)
    assert not output.exists()
