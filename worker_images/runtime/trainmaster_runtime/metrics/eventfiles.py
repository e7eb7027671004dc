"""TensorBoard event files under the output and in the work folder: found, read as they grow, each point once.

A file belongs to the replica whose process has it open; a file that no process has open goes to the first replica,
after a while. What was there before the replica began is not its own, and is not read.

Claims on event files: all replicas see the same output, and each file must be read by one of them.

A claim is a file next to the logs, created by the first replica, with the offset that was read; so the next attempt, or
the next start of this replica, goes on there.
"""

from __future__ import annotations

import json
import os
import zlib

from trainmaster_runtime import clock
from trainmaster_runtime.metrics.tfevents import Broken, Decoder, read_records, time_of
from trainmaster_runtime.process import procfs
from trainmaster_runtime.process.job_user import check_owner

_WALK_S = 5.0  # seconds between two walks over the folders
_ENTRIES = 20_000  # of one walk
_DEPTH = 12
_FILES = 500
_LOOK_BYTES = 512 * 1024  # of one file in one look: some tenths of a second
_UNOWNED_S = 10.0  # how long a file that none of our processes has open is left to the others
_CLOCK_S = 1.0  # that writers round down
_SPLITS = ("train", "training", "val", "validation", "eval", "evaluation", "test")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Set, Tuple

    from trainmaster_runtime.metrics.tfevents import Value


class FileClaim:
    """One event file that is ours to read, from ``offset`` on."""

    def __init__(self, fd: int, owner: str, offset: int) -> None:
        self._fd = fd
        self._owner = owner
        self.offset = offset

    def advance(self, offset: int) -> None:
        """Record that all before ``offset`` is queued. Never fails: at worst some points are sent again after a
        restart.
        """
        self.offset = offset
        try:
            os.pwrite(self._fd, _line(self._owner, offset), 0)
        except OSError:
            pass

    def close(self) -> None:
        os.close(self._fd)


class FileClaims:
    """Args: ``folder``: the same for all replicas and attempts of the job. ``owner``: ``<attempt>/<role>-<index>``."""

    def __init__(self, folder: str, owner: str) -> None:
        self._folder = folder
        self._owner = owner

    def claim(self, path: str, offset: int) -> Optional[FileClaim]:
        """Claim ``path`` (relative to the output) from ``offset`` on; ``None`` when another replica of this attempt has
        it.

        What an earlier attempt read, or an earlier start of this replica, is not read again.
        """
        name = self._folder + "/%08x%08x" % (zlib.crc32(path.encode()), zlib.adler32(path.encode()))
        try:
            os.makedirs(self._folder, exist_ok=True)
            try:
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                return self._take_over(name)
            os.pwrite(fd, _line(self._owner, offset), 0)
        except OSError:
            return None
        return FileClaim(fd, self._owner, offset)

    def _take_over(self, name: str) -> Optional[FileClaim]:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            record = json.loads(os.pread(fd, 500, 0) or b"{}")
            owner, offset = str(record["owner"]), int(record["offset"])
            is_free = owner == self._owner or owner.split("/", maxsplit=1)[0] != self._owner.split("/")[0]
        except (OSError, ValueError, LookupError, TypeError):
            os.close(fd)  # its owner is just writing it
            return None
        if not is_free:
            os.close(fd)
            return None
        return FileClaim(fd, self._owner, offset)


def _line(owner: str, offset: int) -> bytes:
    # Of one length, so that a shorter one leaves nothing of a longer one behind.
    return (json.dumps({"owner": owner, "offset": offset}) + "\n").ljust(200).encode()


class _File:
    def __init__(self, path: str, inode: Tuple[int, int], since: float) -> None:
        self.path = path
        self.inode = inode
        self.since = since
        self.offset = 0
        self.claim: Optional[FileClaim] = None
        self.decoder = Decoder()
        self.is_tensorboard = False
        self.is_done = False


class EventFileReader:
    """Args:

    output: the folder that all replicas share; files in it need a claim.
    work: the replica's own folder; ``None``: the same, or none.
    say: writes a line into the replica's log.
    now: monotonic.
    began: when the replica's processes were started, in seconds since 1970.
    """

    def __init__(
        self,
        output: Optional[str],
        work: Optional[str],
        claims: FileClaims,
        say: Callable[[str], None],
        *,
        now: float,
        began: float,
    ) -> None:
        self._roots = [(root, root == output) for root in (output, work) if root]
        self._claims = claims
        self._say = say
        self._files: Dict[str, _File] = {}
        self._walk_at = 0.0
        for path, inode, size in self._walk():
            known = self._files[path] = _File(path, inode, now)
            # A process may have begun one in the moments since its start.
            known.offset = 0 if _begins(path) >= began - _CLOCK_S else size

    def collect(self, now: float, *, is_last: bool) -> List[Tuple[str, Value]]:
        """(name, value) of what is new. Reads some megabytes at most; never raises."""
        if is_last or now >= self._walk_at:
            began = clock.monotonic()
            for path, inode, _ in self._walk():
                if path not in self._files and len(self._files) < _FILES:
                    self._files[path] = _File(path, inode, now)
            # A large tree on a slow server: a twentieth of the time at most.
            self._walk_at = now + max(_WALK_S, 20 * (clock.monotonic() - began))
        grown = [known for known in self._files.values() if self._is_waiting(known)]
        if grown:
            self._find_owners(grown, now, is_last=is_last)
        values: List[Tuple[str, Value]] = []
        for known in self._files.values():
            if known.is_tensorboard and not known.is_done:
                values += self._read(known)
        return values

    def close(self) -> None:
        for known in self._files.values():
            if known.claim is not None:
                known.claim.close()

    def _find_owners(self, grown: List[_File], now: float, *, is_last: bool) -> None:
        opened = _open_inodes()
        for known in grown:
            if known.inode in opened or is_last or now - known.since >= _UNOWNED_S:
                self._take(known)

    def _is_waiting(self, known: _File) -> bool:
        """Whether the file has unread data and no owner yet."""
        if known.is_tensorboard or known.is_done:
            return False
        try:
            return os.stat(known.path).st_size > known.offset
        except OSError:
            return False

    def _take(self, known: _File) -> None:
        root = next((root for root, is_shared in self._roots if is_shared and known.path.startswith(root + "/")), None)
        if root is None:
            known.is_tensorboard = True
            return
        known.claim = self._claims.claim(known.path[len(root) + 1 :], known.offset)
        if known.claim is None:
            known.is_done = True
        else:
            known.is_tensorboard = True
            known.offset = known.claim.offset

    def _read(self, known: _File) -> List[Tuple[str, Value]]:
        values: List[Tuple[str, Value]] = []
        try:
            fd = os.open(known.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                check_owner(fd)
                records, offset = read_records(fd, known.offset, _LOOK_BYTES)
            finally:
                os.close(fd)
            prefix = self._prefix(known.path) if records else ""
            for record in records:
                values += [(prefix + value.name, value) for value in known.decoder.values(record)]
        except (Broken, ValueError) as error:
            known.is_done = True
            self._say("%s is not read as a TensorBoard file any more: %s" % (os.path.basename(known.path), error))
            return values
        except OSError:
            return []  # gone, or not yet readable
        if offset != known.offset:
            known.offset = offset
            if known.claim is not None:
                known.claim.advance(offset)
        return values

    def _prefix(self, path: str) -> str:
        """A prefix that keeps this file's tags apart from the same tags of others: ``train/`` and ``validation/`` of
        Keras, and folders below another file's, such as torch's ``add_scalars`` makes.
        """
        folder, _, name = os.path.dirname(path).rpartition("/")
        if name in _SPLITS:
            return name + "/"
        above = {os.path.dirname(other) for other in self._files}
        parts = [name]
        while folder and any(folder.startswith(root) for root, _ in self._roots):
            if folder in above:
                return "/".join(parts) + "/"
            folder, _, name = folder.rpartition("/")
            parts.insert(0, name)
        return ""

    def _walk(self) -> List[Tuple[str, Tuple[int, int], int]]:
        """(path, inode, size) of the event files, links not followed."""
        paths = []
        front = [(root, 0) for root, _ in self._roots]
        entry_count = 0
        while front and entry_count < _ENTRIES:
            folder, depth = front.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        entry_count += 1
                        if entry.is_dir(follow_symlinks=False):
                            is_other = depth == 0 and any(entry.path == root for root, _ in self._roots)
                            if depth < _DEPTH and not entry.name.startswith(".") and not is_other:
                                front.append((entry.path, depth + 1))
                        elif "tfevents" in entry.name and entry.is_file(follow_symlinks=False):
                            status = entry.stat(follow_symlinks=False)
                            paths.append((entry.path, (status.st_dev, status.st_ino), status.st_size))
            except OSError:
                continue
        return paths


def _begins(path: str) -> float:
    """When the file's first event was written, in seconds since 1970; 0 where it does not tell."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            check_owner(fd)
            records, _ = read_records(fd, 0, 1)
        finally:
            os.close(fd)
        return time_of(records[0]) if records else 0.0
    except (OSError, ValueError):
        return 0.0


def _open_inodes() -> Set[Tuple[int, int]]:
    """(device, inode) of the event files that our processes have open."""
    inodes = set()
    for pid in procfs.descendants(os.getpid()):
        folder = "/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                if "tfevents" in os.readlink(folder + "/" + name):
                    status = os.stat(folder + "/" + name)
                    inodes.add((status.st_dev, status.st_ino))
            except OSError:
                continue
    return inodes
