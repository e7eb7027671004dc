"""A folder as a confinement: every user-supplied path goes through :class:`Tree`.

The simple equivalent is ``(root / path).resolve()`` and a check that the answer begins with ``root``. Between the check
and the use a training job could swap a folder for a link (TOCTOU), so we walk instead: each name is opened relative to
the descriptor of its parent, we read and follow links ourselves, and ``..`` inside a link pops to the previous
descriptor, never above the root. What has been opened cannot be swapped any more. The same walk as Linux'
``openat2(RESOLVE_BENEATH)``, without depending on that system call.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.domain.errors import Conflict, Forbidden, InsufficientStorage, InvalidRequest, NotFound, Unavailable

# Linux: PATH_MAX and NAME_MAX, limits.h.
PATH_LIMIT_BYTES: Final = 4096
NAME_LIMIT_BYTES: Final = 255
# Descriptors that one walk may hold; deeper trees exist only as attacks.
DEPTH_LIMIT: Final = 100
# As the kernel's own limit, path_resolution(7).
LINK_LIMIT: Final = 40

_O_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY)
_FOLDER: Final = _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOUNT_TABLE: Final = Path("/proc/self/mountinfo")
_AWAY: Final = frozenset({errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT})
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Passes over a folder that is being written to, before giving up.
_PASS_LIMIT: Final = 10_000


class LeavesVolume(NotFound):
    """A link on the way leads out of the confined folder."""


def split_path(path: str, *, field: str = "path") -> tuple[str, ...]:
    """The names of a relative path; ``""`` and ``"."`` give none.

    Raises:
        InvalidRequest: absolute, with ``..``, or no file name that any system takes.
    """
    if path.startswith("/"):
        raise InvalidRequest(f"{field} must be relative to the folder, without a leading slash.", field=field)
    try:
        length = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} has a character that no file name can have.", field=field) from None
    if "\0" in path or length > PATH_LIMIT_BYTES:
        raise InvalidRequest(
            f"{field} is no file name: at most {PATH_LIMIT_BYTES} bytes, none of them zero.", field=field
        )
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if ".." in names:
        raise InvalidRequest(f"{field} must not contain '..'; name the file from the folder's top.", field=field)
    if len(names) > DEPTH_LIMIT or any(len(os.fsencode(name)) > NAME_LIMIT_BYTES for name in names):
        raise InvalidRequest(
            f"{field}: at most {DEPTH_LIMIT} folders deep and {NAME_LIMIT_BYTES} bytes a name.", field=field
        )
    return names


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file or folder. ``path`` is relative to the tree; a link is shown as its target.

    ``device``, ``inode``: its identity, see stat(2).
    """

    path: str
    is_dir: bool
    size_bytes: int
    mtime_ns: int
    device: int = 0
    inode: int = 0


class Tree:
    """The folder ``base`` below ``root``, and nothing outside of it. ``base``: folders one in another, separated by
    ``//``; no link on the way to a folder leaves the one before.

    ``root`` is the admin's: it may be a link itself and is resolved at each call, so that a remounted volume is found
    again.
    ``base`` is walked like any path. All methods block on the file system.

    Every method raises ``InvalidRequest`` (a hostile path), ``NotFound`` (nothing there, or a link that leads out),
    ``Forbidden`` (the file system refuses) or ``Unavailable`` (the volume is away).
    """

    def __init__(self, root: Path | str, base: str = "", *, label: str = "The volume") -> None:
        self._root = os.fspath(root)
        self._bases = tuple(split_path(part) for part in base.split("//") if part)
        self._label = label

    def below(self, path: str) -> Tree:
        """The folder ``path`` as a tree of its own: links that leave it are refused, too, and those on the way that
        leave this tree.
        """
        return Tree(self._root, self._joined(*self._bases, split_path(path)), label=self._label)

    @staticmethod
    def _joined(*bases: tuple[str, ...]) -> str:
        return "//".join("/".join(names) for names in bases if names)

    def to_json(self) -> dict[str, str]:
        """The constructor's arguments, to rebuild the tree in another process."""
        return {"root": str(Path(self._root).absolute()), "base": self._joined(*self._bases), "label": self._label}

    def open_file(self, path: str) -> int:
        """A descriptor for reading a regular file; the caller closes it. Never blocks on a pipe or a device."""
        with self._at(path) as (folder, name):
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise InvalidRequest(f"{path or '.'} is not a file that can be read.", field="path")
            # NONBLOCK: it may have become a pipe meanwhile; opening one would wait for its writer.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise NotFound(f"{path} is no longer a file.")
            return fd

    def stat(self, path: str = "") -> TreeEntry:
        """The status of ``path``, following links inside the tree."""
        with self._at(path) as (folder, name):
            return _entry("/".join(split_path(path)), os.stat(name, dir_fd=folder, follow_symlinks=False))

    def exists(self, path: str = "") -> bool:
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def is_link(self, path: str) -> bool:
        """Whether ``path`` itself is a symbolic link; false if it does not exist."""
        names = split_path(path)
        if not names:
            return False
        try:
            with self._at("/".join(names[:-1])) as (parent, folder_name):
                folder = os.open(folder_name, _FOLDER, dir_fd=parent)
                try:
                    return _link_target(names[-1], folder) is not None
                finally:
                    os.close(folder)
        except NotFound:
            return False

    @contextmanager
    def open_folder(self, path: str = "") -> Iterator[int]:
        """A descriptor of a folder, good for ``os.scandir`` and as ``dir_fd``, until the end of the block."""
        with self._at(path) as (parent, name):
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                yield fd
            finally:
                os.close(fd)

    def names(self, path: str = "") -> list[str]:
        """Names in a folder, unordered."""
        with self.open_folder(path) as fd:
            return os.listdir(fd)  # noqa: PTH208 (a descriptor, not a path)

    def make_folder(self, path: str, *, mode: int = 0o775, owner: tuple[int, int] | None = None) -> bool:
        """Create ``path`` with all its parents; false if it exists (then nothing is changed).

        Args:
            mode: of every created folder, whatever the umask.
            owner: (uid, gid) of every created folder; needs the right to chown.
        """
        names = split_path(path)
        made = False
        for end in range(1, len(names) + 1):
            with self._at("/".join(names[:end])) as (folder, name):
                made = _make(folder, name, mode=mode, owner=owner)
        return made

    def give_folder(self, path: str, owner: tuple[int, int]) -> None:
        """Change the owner of the folder ``path``, but of nothing in it."""
        with self.open_folder(path) as fd:
            status = os.fstat(fd)
            if (status.st_uid, status.st_gid) != owner:
                os.fchown(fd, *owner)

    @contextmanager
    def new_file(self, path: str, *, replaces: bool = True) -> Iterator[int]:
        """A descriptor to write the file ``path``, which is published atomically when the block ends well, replacing an
        earlier one. Missing folders are created. The owner is that of the folder in which something is created.

        Without ``replaces`` it raises ``FileExistsError`` at the block's end if the path exists.
        """
        with self._folder_for(path) as (folder, name, owner):
            draft = f".{secrets.token_hex(8)}.part"
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                yield fd
                _publish(fd, (folder, draft), (folder, name), owner, replaces=replaces)
            except BaseException:
                os.unlink(draft, dir_fd=folder)
                raise
            finally:
                os.close(fd)

    @contextmanager
    def draft(self, path: str) -> Iterator[int]:
        """A descriptor to read and continue a file that is written in several steps and readable by us alone meanwhile.
        Created if missing. See :meth:`publish`.
        """
        with self._folder_for(path) as (folder, name, _):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=folder)
            try:
                yield fd
            finally:
                os.close(fd)

    def publish(self, draft: str, target: Tree, path: str, *, replaces: bool = True) -> None:
        """Move a draft of this tree to ``path`` of ``target``, which is on the same file system. Like ``new_file``."""
        names = split_path(draft)
        with target._folder_for(path) as (folder, name, owner), self.open_folder("/".join(names[:-1])) as source:
            fd = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
            try:
                _publish(fd, (source, names[-1]), (folder, name), owner, replaces=replaces)
            finally:
                os.close(fd)

    @contextmanager
    def _folder_for(self, path: str) -> Iterator[tuple[int, str, tuple[int, int] | None]]:
        """The folder of a new file, created with its parents, the file's name, and the owner to give it."""
        names = split_path(path)
        if not names:
            raise InvalidRequest("path is missing: name the file.", field="path")
        # Only root may chown; no other user needs to.
        owner = self._owner_above(names[:-1]) if os.geteuid() == 0 else None
        self.make_folder("/".join(names[:-1]), owner=owner)
        with self.open_folder("/".join(names[:-1])) as folder:
            yield folder, names[-1], owner

    def _owner_above(self, names: tuple[str, ...]) -> tuple[int, int]:
        """(uid, gid) of the innermost of these folders that exists."""
        try:
            with self.open_folder("/".join(names)) as folder:
                status = os.fstat(folder)
                return (status.st_uid, status.st_gid)
        except NotFound:
            if not names:
                raise
            return self._owner_above(names[:-1])

    def delete(self, path: str) -> None:
        """Remove a file, a link or a whole folder; links inside are removed, never followed. Idempotent.

        The tree's own top is only emptied.
        """
        names = split_path(path)
        try:
            with self._at("/".join(names[:-1])) as (parent, folder_name):
                folder = os.open(folder_name, _FOLDER, dir_fd=parent)
                try:
                    _delete(folder, names[-1] if names else None)
                finally:
                    os.close(folder)
        except LeavesVolume:
            raise
        except NotFound:
            return

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[int, str]]:
        """The folder's descriptor and the last name of ``path``, which is no link; translates every ``OSError`` of the
        block.
        """
        names = split_path(path)
        shown = "/".join(names) or "The folder"
        with self._in_words(shown), ExitStack() as cleanup:
            stack = [self._open_root()]
            cleanup.callback(_close_all, stack)
            for base in self._bases:
                # Each base becomes the floor: descriptors above it are dropped, so that no link pops below.
                last = _walk(stack, base, shown)
                top = os.open(last, _FOLDER, dir_fd=stack[-1])
                _close_all(stack)
                stack[:] = [top]
            last = _walk(stack, names, shown)
            yield stack[-1], last

    def _open_root(self) -> int:
        try:
            return os.open(self._root, _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            # Users see the sentence: the root's path is for the admin alone.
            raise Unavailable(
                f"{self._label} is not there now ({os.strerror(error.errno or 0)}); an admin must mount it again.",
                retry_after_s=30.0,
            ) from error

    @contextmanager
    def _in_words(self, shown: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"{shown} does not exist.") from None
        except NotADirectoryError:
            raise NotFound(f"{shown} does not exist: a part of the way is not a folder.") from None
        except PermissionError:
            raise Forbidden(f"{shown}: the platform's user has no permission for it on {self._label}.") from None
        except OSError as error:
            raise _translate(error, shown, self._label) from error


def _publish(
    fd: int, draft: tuple[int, str], target: tuple[int, str], owner: tuple[int, int] | None, *, replaces: bool
) -> None:
    """``draft`` and ``target``: a folder's descriptor and a name in it. ``fd`` is the draft's."""
    if owner is not None:
        os.fchown(fd, *owner)
    os.fchmod(fd, 0o664)
    if replaces:
        os.rename(draft[1], target[1], src_dir_fd=draft[0], dst_dir_fd=target[0])
        return
    os.link(draft[1], target[1], src_dir_fd=draft[0], dst_dir_fd=target[0], follow_symlinks=False)
    os.unlink(draft[1], dir_fd=draft[0])


def _translate(error: OSError, shown: str, label: str) -> Exception:
    """The platform's error for an expected ``OSError``."""
    match error.errno:
        case errno.ELOOP:
            return NotFound(f"{shown} does not exist: its links lead in a circle or are changing now.")
        case errno.ENOSPC | errno.EDQUOT:
            return InsufficientStorage(f"{label} is full; delete files or ask an admin for room.")
        case errno.EISDIR | errno.ENOTEMPTY:
            return Conflict(f"{shown} is a folder; give the file another name.")
        case errno.EROFS:
            return Conflict(f"{label} is read-only.")
        case code if code in _AWAY:
            return Unavailable(f"{label} does not answer ({os.strerror(error.errno or 0)}).", retry_after_s=10.0)
        case _:
            return error


def _walk(stack: list[int], names: tuple[str, ...], shown: str) -> str:
    """Open the path to the last name of ``names`` onto ``stack`` and return that name (``"."``: the top of the stack).

    The last name may be missing, and is no link at that moment: the caller opens it with NOFOLLOW.
    """
    pending = deque(names)
    links = 0
    floor = len(stack)
    while pending:
        name = pending.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            if len(stack) == floor:
                raise LeavesVolume(f"{shown} does not exist: a link on the way leads out of the folder.")
            os.close(stack.pop())
            continue
        target = _link_target(name, stack[-1])
        if target is not None:
            links += 1
            if target.startswith("/"):
                raise LeavesVolume(f"{shown} does not exist: a link on the way leads out of the folder.")
            if links > LINK_LIMIT:
                raise NotFound(f"{shown} does not exist: more than {LINK_LIMIT} links on the way.")
            pending.extendleft(reversed(target.split("/")))
            continue
        if not any(rest not in ("", ".") for rest in pending):
            return name
        if len(stack) - floor >= DEPTH_LIMIT:
            raise NotFound(f"{shown} does not exist: more than {DEPTH_LIMIT} folders deep.")
        stack.append(os.open(name, _FOLDER, dir_fd=stack[-1]))
    return "."


def _link_target(name: str, folder: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # not a link
            return None
        raise


def _close_all(stack: list[int]) -> None:
    while stack:
        os.close(stack.pop())


def _entry(path: str, status: os.stat_result) -> TreeEntry:
    is_dir = stat.S_ISDIR(status.st_mode)
    size_bytes = 0 if is_dir else status.st_size
    return TreeEntry(path, is_dir, size_bytes, status.st_mtime_ns, status.st_dev, status.st_ino)


def has_lasting_inodes(device: int) -> bool:
    """Whether inode numbers of the file system ``device`` are stable: FUSE's may change at any time."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNT_TABLE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        mount, _, rest = line.partition(" - ")
        # https://www.kernel.org/doc/html/latest/filesystems/proc.html, section 3.5
        if mount.split(" ")[2] == wanted:
            return not rest.startswith("fuse")
    return False


def _make(folder: int, name: str, *, mode: int, owner: tuple[int, int] | None) -> bool:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise Conflict(f"{name} exists and is not a folder.") from None
        return False
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if owner is not None:
            os.fchown(fd, *owner)
        # Where new files get their folder's group, folders in it do the same.
        os.fchmod(fd, mode | (os.fstat(folder).st_mode & stat.S_ISGID))
    finally:
        os.close(fd)
    return True


def _delete(folder: int, name: str | None) -> None:
    """Remove ``name`` from ``folder``, or empty ``folder`` itself."""
    if name is None:
        empty_folder(folder)
        return
    try:
        os.unlink(name, dir_fd=folder)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):  # Linux says EISDIR, POSIX EPERM
            raise
    empty_folder(folder, name)
    os.rmdir(name, dir_fd=folder)


def empty_folder(parent: int, name: str = ".") -> None:
    """Remove everything in the folder ``name`` of ``parent`` (a descriptor), whatever its depth.

    The simple equivalent is ``shutil.rmtree``, which recurses: a job that nests ten thousand folders breaks it. Here a
    folder's files are unlinked, and its subfolders are moved up to the top and emptied in turn, so that depth does not
    matter. Can be interrupted and repeated.

    Raises:
        OSError: the file system refuses, or the folder is being written to.
    """
    top = os.open(name, _OPEN, dir_fd=parent)
    try:
        serial = 0
        for _ in range(_PASS_LIMIT):
            folders = _unlink_files(top)
            if not folders:
                return
            for folder in folders:
                serial = _dissolve(top, folder, serial)
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
    finally:
        os.close(top)


def _unlink_files(folder: int) -> list[str]:
    """Unlink everything but folders; returns the folders' names."""
    with os.scandir(folder) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_dir in listed:
        if not is_dir:
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                continue
    return [name for name, is_dir in listed if is_dir]


def _dissolve(top: int, name: str, serial: int) -> int:
    """Remove the folder ``name`` of ``top``: unlink its files, move its folders up into ``top``."""
    try:
        folder = os.open(name, _OPEN, dir_fd=top)
    except FileNotFoundError:
        return serial
    try:
        for child in _unlink_files(folder):
            serial = _move_up(folder, child, top, serial)
    finally:
        os.close(folder)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        # Written to meanwhile: the next pass handles it.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
    return serial


def _move_up(folder: int, child: str, top: int, serial: int) -> int:
    try:
        os.rmdir(child, dir_fd=folder)
        return serial
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    while True:
        serial += 1
        try:
            # rename succeeds onto an existing empty folder, which is fine; onto anything else it fails.
            os.rename(child, f".deleting-{serial}", src_dir_fd=folder, dst_dir_fd=top)
            return serial
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
