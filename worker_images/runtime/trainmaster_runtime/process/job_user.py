"""The user that a replica's commands run as, where the runtime is root and each project has a user id of its own.

The runtime stays root, out of reach of the commands, but all its threads write files as the job's user: what a command
puts in the way of the log or of the reports, such as a link, leads the runtime nowhere where the command may not write
itself. :func:`as_root` is the exception, for files that no command reaches. Reading needs no rights (Python's own files
may lie where only root goes), so whatever a command may have replaced is read only after :func:`check_owner`.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager

from trainmaster_runtime.process import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator

    from trainmaster_runtime.order import RuntimeOrder

# A project's files are the project's alone; its group is for projects that a grant lets in.
_UMASK = 0o007
_FILES_LIMIT = 1_000_000

_user: int | None = None  # of this runtime's job
_install_filter: Callable[[], None]


def write_as(uid: int, groups: list[int]) -> None:
    """From now on this process, with all threads that it starts, writes as ``uid`` and its group of the same number."""
    global _user, _install_filter  # noqa: PLW0603 - credentials are the process's, too
    from trainmaster_runtime.process import seccomp  # of the few that need it

    _install_filter = seccomp.install
    os.setgroups(groups)
    os.umask(_UMASK)
    _user = uid
    _leave_root()


@contextmanager
def as_root() -> Iterator[None]:
    """Write as root in this thread; nothing changes where no :func:`write_as` was."""
    if _user is None or syscalls.file_user() == 0:
        yield
        return
    syscalls.set_file_user(0)
    try:
        yield
    finally:
        _leave_root()


def become_root() -> None:
    """Like :func:`as_root`, for the rest of a forked process."""
    if _user is not None:
        syscalls.set_file_user(0)
        os.umask(0o022)


def become_user() -> None:
    """Give up root for good, in a forked process; nothing changes where no :func:`write_as` was."""
    if _user is None:
        return
    os.umask(_UMASK)
    os.setresgid(_user, _user, _user)
    os.setresuid(_user, _user, _user)
    syscalls.refuse_new_rights()
    _install_filter()


def check_owner(fd: int) -> None:
    """Raise ``PermissionError`` for an open file that is no file of the job's user."""
    if _user is not None and os.fstat(fd).st_uid != _user:
        raise PermissionError(13, os.strerror(13))


def _leave_root() -> None:
    syscalls.set_file_user(_user or 0)
    syscalls.read_as_root()


def give_folders(order: RuntimeOrder) -> None:
    """Give the order's folders that are still root's, as an earlier version left them, to their owners."""
    for mount in order.mounts:
        if mount.owner is None or mount.read_only or not os.path.isdir(mount.source):
            continue
        status = os.stat(mount.source)
        if status.st_uid == 0 and (status.st_uid, status.st_gid) != mount.owner:
            _give_tree(mount.source, *mount.owner)


def _give_tree(path: str, uid: int, gid: int) -> None:
    """The top comes last: it says that all of it is given. Links are not followed, and files with several names stay
    as they are. At most a million files.
    """
    count = 0
    for _, folders, files, folder in os.fwalk(path, topdown=False, follow_symlinks=False):
        for name in (*files, *folders):
            count += 1
            if count > _FILES_LIMIT:
                return
            _give(name, folder, uid, gid)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        give_opened(top, uid, gid)
    finally:
        os.close(top)


def _give(name: str, folder: int, uid: int, gid: int) -> None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:  # a link, or gone
        return
    try:
        give_opened(fd, uid, gid)
    finally:
        os.close(fd)


def give_opened(fd: int, uid: int, gid: int) -> None:
    """Change owner and group of an open file or folder; the group gets the owner's rights."""
    status = os.fstat(fd)
    is_folder = stat.S_ISDIR(status.st_mode)
    if not is_folder and (not stat.S_ISREG(status.st_mode) or status.st_nlink != 1):
        return
    os.fchown(fd, uid, gid)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    os.fchmod(fd, mode | (mode & 0o700) >> 3 | (stat.S_ISGID if is_folder else 0))
