"""User ids of projects: with plain processes as root, each project's jobs run as a user of their own.

Projects count from 1, and a project's user id is the first id of the range and its number: see ``projects.uid_offset``.
The first id itself is the group of all that use folders which belong to no project.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import func, select, update

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Project
from core.domain.errors import ExecutorRefused
from core.settings import BadSettings, Settings

# Of the folders that the platform makes for jobs: closed to other projects, with the folder's group for all in it.
FOLDER_MODE: Final = 0o2770
SUBORDINATE_IDS = Path("/etc/subuid")
_PROBE_S: Final = 30.0
# Run with the range's ends: whether this process may change its user to each, in a mount namespace of its own.
_PROBE: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(done):
    if done:
        sys.exit(os.strerror(ctypes.get_errno()))
call(libc.unshare(0x00020000))
call(libc.mount(b"none", b"/", None, ctypes.c_ulong(0x80000 | 0x4000), None))
call(libc.mount(b"none", b"/proc", b"tmpfs", ctypes.c_ulong(0), None))
for uid in map(int, sys.argv[1:]):
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([uid])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            os.write(2, ("user id %d: %s" % (uid, error.strerror)).encode())
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        os._exit(1)
"""


@dataclass(frozen=True, slots=True)
class JobUsers:
    """The range of user ids. ``home``: the platform's data folder, whose volumes are given to the jobs' users."""

    first: int
    last: int
    home: Path

    @property
    def shared_group(self) -> int:
        """The group of folders that belong to no project."""
        return self.first

    def uid(self, offset: int) -> int:
        """Raises ``ExecutorRefused`` when the range is used up."""
        if self.first + offset > self.last:
            raise ExecutorRefused(
                f"All user ids of TRAINMASTER_JOB_UIDS={self.first}-{self.last} are taken by other projects; an "
                "administrator must choose a wider range that begins with the same id."
            )
        return self.first + offset


def find_job_users(settings: Settings) -> JobUsers | str:
    """The user ids of the projects' jobs; or why all plain processes run as the platform's user, as the rest of a
    sentence.

    Raises:
        BadSettings: the range has a user id that this machine uses already.
    """
    if settings.job_uids == "off":
        return "TRAINMASTER_JOB_UIDS is off"
    first, last = map(int, settings.job_uids.split("-"))
    why = why_not(first, last)
    if why is not None:
        return why
    _check_collisions(first, last)
    return JobUsers(first, last, settings.home.resolve())


def refusal_of_users(settings: Settings) -> str | None:
    """Why this platform takes no second user, in sentences; ``None``: it does.

    Raises:
        BadSettings: as of ``find_job_users``.
    """
    if settings.executor != "process" or settings.shared_trust:
        return None
    why = find_job_users(settings)
    if isinstance(why, JobUsers):
        return None
    return (
        f"This platform serves one user: all jobs run as the platform's own user, since {why}, and each could read "
        "and end the others'. Start it as root, or with --executor docker or kubernetes; where all users may trust "
        "each other, set TRAINMASTER_SHARED_TRUST=1."
    )


def describe(settings: Settings) -> str | None:
    """One sentence for the start: as whom plain processes run; ``None`` with another executor. Raises
    ``BadSettings``.
    """
    if settings.executor != "process":
        return None
    users = find_job_users(settings)
    if isinstance(users, JobUsers):
        return f"Each project's jobs run as a user of their own (ids {users.first + 1} to {users.last})."
    return refusal_of_users(settings) or f"The jobs of all users run as the platform's own user, since {users}."


@functools.cache
def why_not(first: int, last: int) -> str | None:
    """Why this process cannot start others as the users of the range; ``None``: it can."""
    if not sys.platform.startswith("linux"):
        return "only Linux has what separates them"
    if os.geteuid() != 0:
        return "it was not started as root"
    try:
        probe = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROBE, str(first), str(last)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it could not be tried ({error})"
    if probe.returncode == 0:
        return None
    return f"root has not all rights here, as in a container ({probe.stderr.strip()[-200:]})"


def _check_collisions(first: int, last: int) -> None:
    import pwd

    advice = "choose a range that nothing else uses, such as 1500000-1565535, before the first start"
    for entry in pwd.getpwall():
        if first <= entry.pw_uid <= last:
            raise BadSettings(
                f"TRAINMASTER_JOB_UIDS={first}-{last} holds the user id of {entry.pw_name} ({entry.pw_uid}): {advice}."
            )
    try:
        lines = SUBORDINATE_IDS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, span = line.partition(":")
        begin, _, count = span.partition(":")
        if begin.isdigit() and count.isdigit() and int(begin) <= last and first < int(begin) + int(count):
            raise BadSettings(
                f"TRAINMASTER_JOB_UIDS={first}-{last} overlaps with the subordinate ids of {name} in /etc/subuid "
                f"({begin}-{int(begin) + int(count) - 1}): {advice}."
            )


def demand_uids(sessions: SessionFactory, users: JobUsers, projects: Collection[str]) -> dict[str, int]:
    """User ids by project; those that have none yet get one. Names of no project are left out. Opens sessions of its
    own.
    """
    query = select(Project.name, Project.uid_offset).where(Project.name.in_(projects))
    with unit_of_work(sessions, read_only=True) as session:
        offsets = {row.name: row.uid_offset for row in session.execute(query)}
    missing = sorted(name for name, offset in offsets.items() if offset is None)
    if missing:
        highest = select(func.coalesce(func.max(Project.uid_offset), 0) + 1).scalar_subquery()
        with unit_of_work(sessions) as session:
            for name in missing:
                session.execute(
                    update(Project)
                    .where(Project.name == name, Project.uid_offset.is_(None))
                    .values(uid_offset=highest)
                    .execution_options(synchronize_session=False)
                )
            offsets = {row.name: row.uid_offset for row in session.execute(query)}
    return {name: users.uid(offset) for name, offset in offsets.items() if offset is not None}


@dataclass(frozen=True, slots=True)
class FolderOwners:
    """Owners of the folders that one job uses. ``uid``: of its project; ``uids``: of the projects whose folders it
    uses. ``shared_volume``: the volume of the projects' own folders.
    """

    users: JobUsers
    uid: int
    uids: dict[str, int]
    shared_volume: str

    def of(self, volume: str, path: str) -> tuple[int, int]:
        """(uid, gid) of what lies in a folder."""
        if volume != self.shared_volume:
            return (0, self.users.shared_group)
        uid = self.uids.get(path.partition("/")[0], self.uid)
        return (uid, uid)
