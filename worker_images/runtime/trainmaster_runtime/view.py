"""The job's own view of the file system: ``/data`` and the mounts are really there, and the host's root is untouched.

A forked builder makes a mount namespace (in a user namespace of its own when not root), puts a small tmpfs in the
place of the root, binds every top-level entry of the host's root into it, and the job's folders over those. The
runtime itself stays in the host's view and keeps two file descriptors, by which each of the user's processes enters.
"""

from __future__ import annotations

import os
import stat

from trainmaster_runtime.process import job_user, syscalls
from trainmaster_runtime.process.syscalls import CLONE_NEWNS, CLONE_NEWUSER, MS_BIND, MS_NODEV, MS_NOSUID, MS_REC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.order import OrderMount, RuntimeOrder

WORK = "/data"
_SHM = "/dev/shm"  # noqa: S108 - a mount point, no file is made in it
_TMPFS = "tmpfs:"  # instead of a source: a tmpfs with the options that follow
_PROC = "proc:"  # instead of a source: /proc without the processes of other users
_COVER = "cover:"  # instead of a source: an empty read-only folder


class ViewRefused(Exception):
    """The kernel allows no view; the sentence holds its reason."""


class ViewFailed(Exception):
    """The order's own fault, a sentence for the user: a source is missing, a target cannot be made."""


class View:
    """A finished view. ``enter`` is for a forked child."""

    def __init__(self, user_fd: int | None, mount_fd: int) -> None:
        self._user_fd = user_fd
        self._mount_fd = mount_fd

    @property
    def description(self) -> str:
        return "mount namespace" if self._user_fd is None else "user and mount namespace"

    def enter(self) -> None:
        """Move the calling process in; its working directory is the view's root afterwards."""
        if self._user_fd is not None:
            syscalls.setns(self._user_fd, CLONE_NEWUSER)
        syscalls.setns(self._mount_fd, CLONE_NEWNS)


class Builder:
    """Builds a view in a forked process while the runtime does other things; :meth:`finish` waits for it."""

    def __init__(self, order: RuntimeOrder, work: str, staging: str) -> None:
        """``staging``: an empty folder of ours, used as a mount point inside the builder only."""
        hidden = [path for path in order.needed_paths if _is_below(path, [WORK, *(m.target for m in order.mounts)])]
        if hidden:
            raise ViewRefused("%s would be hidden by the job's folders" % hidden[0])
        nodes = _plan(order, work)
        answer, self._answer_end = os.pipe()
        self._go_end, go = os.pipe()
        self._answer = answer
        self._go = go
        self._pid = os.fork()
        if self._pid == 0:
            # Only the runtime may keep this end open, or its death would not be seen by the builder.
            os.close(go)
            _build_and_wait(nodes, staging, self._answer_end, self._go_end)
        os.close(self._answer_end)
        os.close(self._go_end)

    def finish(self) -> View:
        """The view. Raises :class:`ViewRefused` or :class:`ViewFailed`."""
        text = b""
        while True:
            chunk = os.read(self._answer, 4096)
            text += chunk
            if not chunk or text.endswith(b"\n"):
                break
        try:
            kind, _, sentence = text.decode("utf-8", "replace").strip().partition(" ")
            if kind == "failed":
                raise ViewFailed(sentence)
            if kind != "ready":
                raise ViewRefused(sentence or "the builder died")
            try:
                user_fd = None
                if sentence == "user":
                    user_fd = os.open("/proc/%d/ns/user" % self._pid, os.O_RDONLY)
                return View(user_fd, os.open("/proc/%d/ns/mnt" % self._pid, os.O_RDONLY))
            except OSError as error:
                raise ViewRefused("the namespaces cannot be opened: %s" % error.strerror) from error
        finally:
            os.close(self._answer)
            os.close(self._go)
            os.waitpid(self._pid, 0)


class _Node:
    """A folder of the view: a mount (``source`` set), or on the way to one."""

    __slots__ = ("below", "read_only", "source")

    def __init__(self) -> None:
        self.source: str | None = None
        self.read_only = False
        self.below: dict[str, _Node] = {}


def _plan(order: RuntimeOrder, work: str) -> _Node:
    root = _Node()
    _add(root, WORK, os.path.realpath(work), False)
    places = [(WORK, os.path.realpath(work))]
    for mount in sorted(order.mounts, key=lambda m: m.target):
        if not os.path.exists(mount.source):
            raise ViewFailed("%s: what is to be mounted there does not exist on this node." % mount.target)
        places.append((_resolve(mount), os.path.realpath(mount.source)))
        _add(root, *places[-1], mount.read_only)
    # Jobs' own users pass through folders such as /root only where nothing else is shown in them.
    shown = [*order.needed_paths, *(mount.target for mount in order.mounts if not _is_below(mount.target, [WORK]))]
    closed = [] if order.uid is None else closed_folders(shown)
    for path in dict.fromkeys([*closed, *order.hidden]):
        _hide(root, os.path.realpath(path), places, order.needed_paths)
    if order.uid is not None and _can_hide_processes():
        _add(root, "/proc", _PROC, False)
    if order.shm_bytes is not None:
        _add(root, os.path.realpath(_SHM), _TMPFS + "mode=1777,size=%d" % order.shm_bytes, False)
    return root


def _can_hide_processes() -> bool:
    """Before Linux 5.8 the options of one /proc are those of all."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= (5, 8)


def closed_folders(paths: list[str]) -> list[str]:
    """The outermost folder above each of ``paths`` that not everyone may enter, such as ``/root``."""
    closed = []
    for path in paths:
        names = os.path.realpath(path).split("/")[1:-1]
        folders = ["/" + "/".join(names[: end + 1]) for end in range(len(names))]
        closed += [f for f in folders if os.path.isdir(f) and not os.stat(f).st_mode & stat.S_IXOTH][:1]
    return list(dict.fromkeys(closed))


def _hide(root: _Node, path: str, places: list[tuple[str, str]], needed: list[str]) -> None:
    """Cover ``path`` wherever the view would show it: at its place, and in mounts of a folder above it.

    The job's own folders may lie in it: their binds are made from the host's root and stay.
    """
    if not os.path.isdir(path) or path == "/":
        return
    for target, source in places:
        if source == path:
            raise ViewFailed("%s: the platform's own data cannot be mounted; choose another folder." % target)
        if _is_below(path, [source]):
            _cover(root, target + path[len(source.rstrip("/")) :])
    if _is_below(path, [target for target, _ in places]):
        return  # something of the job's lies over it already
    _cover(root, path)
    inside = [path_needed for path_needed in needed if path_needed != path and _is_below(path_needed, [path])]
    for path_needed in inside:
        # Only the topmost: what lies in one of them (a link, as an environment's python is) comes with it.
        if not any(path_needed != other and _is_below(path_needed, [other]) for other in inside):
            _add(root, path_needed, os.path.realpath(path_needed), True)


def _cover(root: _Node, target: str) -> None:
    node = root
    for name in target.strip("/").split("/"):
        node = node.below.setdefault(name, _Node())
    if node.source is None:  # else a mount of the job's own lies over it
        node.source = _COVER


def _add(root: _Node, target: str, source: str, read_only: bool) -> None:
    node = root
    for name in target.strip("/").split("/"):
        node = node.below.setdefault(name, _Node())
    node.source = source
    node.read_only = read_only


def _resolve(mount: OrderMount) -> str:
    """The target with the host's links followed (``/bin/x`` is ``/usr/bin/x``), except below ``/data``."""
    if _is_below(mount.target, [WORK]):
        return mount.target
    parent, _, name = mount.target.rpartition("/")
    return (os.path.realpath(parent or "/").rstrip("/") or "") + "/" + name


def _is_below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _build_and_wait(nodes: _Node, staging: str, answer: int, go: int) -> None:
    """The builder's life: build, tell, stay until the runtime has the namespaces. Never returns."""
    try:
        try:
            job_user.become_root()
            kind = _unshare()
            _swap_root(staging)
            _fill("/old", "/new", nodes)
            _enter_new()
            text = "ready " + kind
        except OSError as error:
            # Not the error's own path: that may be the host's, and the log is read by users.
            text = "refused %s (%s)" % (error.strerror, _STEP[0])
        except ViewFailed as error:
            text = "failed %s" % error
        os.write(answer, text.replace("\n", " ").encode()[:4000] + b"\n")
        os.read(go, 1)
    finally:
        os._exit(0)


_STEP = [""]  # what the builder was at when a system call failed


def _unshare() -> str:
    _STEP[0] = "unshare"
    if os.geteuid() == 0:
        try:
            syscalls.unshare(CLONE_NEWNS)
            return "mount"
        except PermissionError:
            pass
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(CLONE_NEWUSER | CLONE_NEWNS)
    # The change of credentials made this process's /proc files root's; the runtime must open its namespaces.
    syscalls.be_dumpable()
    for name, text in (("setgroups", "deny"), ("uid_map", "%d %d 1" % (uid, uid)), ("gid_map", "%d %d 1" % (gid, gid))):
        _STEP[0] = name
        with open("/proc/self/" + name, "w") as stream:
            stream.write(text)
    return "user"


def _swap_root(staging: str) -> None:
    """Make a tmpfs the root, with the host's root below it at ``/old`` and the coming one at ``/new``.

    First this swap, then the binds: were the tmpfs mounted somewhere below the host's root, binding the host's
    folders would bind it into itself. (bubblewrap goes the same way.)
    """
    _STEP[0] = "propagation"
    # Slave: what the host mounts later still appears, nothing of ours goes back.
    syscalls.mount("none", "/", None, syscalls.MS_SLAVE | MS_REC)
    _STEP[0] = "tmpfs"
    syscalls.mount("trainmaster", staging, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m")
    os.mkdir(staging + "/old", 0o755)
    os.mkdir(staging + "/new", 0o755)
    _STEP[0] = "pivot_root"
    syscalls.pivot_root(staging, staging + "/old")
    os.chdir("/")
    _STEP[0] = "tmpfs"
    syscalls.mount("trainmaster", "/new", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m")


def _enter_new() -> None:
    _STEP[0] = "read-only root"
    # The root itself holds mount points only; a file made there would silently live in memory.
    syscalls.mount("none", "/new", None, syscalls.MS_REMOUNT | MS_BIND | syscalls.MS_RDONLY | MS_NOSUID | MS_NODEV)
    _STEP[0] = "pivot_root"
    os.chdir("/new")
    # Old and new root at one place: the old one is stacked on top and taken away. See pivot_root(2), "pivot_root(".")".
    syscalls.unmount("/old", syscalls.MNT_DETACH)
    syscalls.pivot_root(".", ".")
    syscalls.unmount(".", syscalls.MNT_DETACH)
    os.chdir("/")


def _fill(old: str, new: str, node: _Node) -> None:
    """Make ``new`` show the content of ``old``, with the mounts of ``node`` over it."""
    _STEP[0] = "listing " + (old[len("/old") :] or "/")
    for name in os.listdir(old):
        if name not in node.below:
            _show(old + "/" + name, new + "/" + name)
    for name, child in node.below.items():
        _place(old + "/" + name, new + "/" + name, child)


def _show(old: str, new: str) -> None:
    """Bind one entry of the host; what cannot be bound is left out, as if it were not there."""
    try:
        mode = os.lstat(old).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(old), new)
        elif stat.S_ISDIR(mode):
            os.mkdir(new, 0o755)
            syscalls.mount(old, new, None, MS_BIND | MS_REC)
        else:
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o644))
            syscalls.mount(old, new, None, MS_BIND)
    except OSError:
        pass


def _place(old: str, new: str, node: _Node) -> None:
    if node.source is not None:
        _bind(node, new)
        for name, child in node.below.items():
            # Mount points inside a mount are made in its source, which is the job's own folder or must hold them.
            _place(new + "/" + name, new + "/" + name, child)
        if node.source == _COVER:
            syscalls.mount("none", new, None, syscalls.MS_REMOUNT | MS_BIND | syscalls.MS_RDONLY | MS_NOSUID | MS_NODEV)
        return
    if os.path.isdir(old) and all(os.path.isdir(old + "/" + name) for name in node.below):
        if old != new:
            os.mkdir(new, 0o755)
            _STEP[0] = "binding " + new[len("/new") :]
            syscalls.mount(old, new, None, MS_BIND | MS_REC)
        for name, child in node.below.items():
            _place(new + "/" + name, new + "/" + name, child)
        return
    # A mount point is missing on the host: the folder above it is rebuilt from single binds, so that the host's stays
    # as it is.
    if not os.path.isdir(new):
        os.mkdir(new, 0o755)
    if os.path.isdir(old) and old != new:
        _fill(old, new, node)
        return
    for name, child in node.below.items():
        _place(new + "/" + name, new + "/" + name, child)


def _bind(node: _Node, new: str) -> None:
    target = new[len("/new") :]
    source = node.source or ""
    is_folder = source.startswith((_TMPFS, _COVER, _PROC)) or os.path.isdir("/old" + source)
    try:
        if is_folder:
            os.makedirs(new, exist_ok=True)
        elif not os.path.exists(new):
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o644))
    except OSError as error:
        raise ViewFailed(
            "%s: the mount point cannot be made (%s); choose another target." % (target, error.strerror)
        ) from error
    _STEP[0] = "mounting " + target
    if source.startswith(_TMPFS):
        syscalls.mount("shm", new, "tmpfs", MS_NOSUID | MS_NODEV, source[len(_TMPFS) :])
        return
    if source == _PROC:
        syscalls.mount("proc", new, "proc", MS_NOSUID | MS_NODEV | syscalls.MS_NOEXEC, "hidepid=2")
        return
    if source == _COVER:
        syscalls.mount("hidden", new, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=64k")
        return
    syscalls.mount("/old" + source, new, None, MS_BIND | MS_REC)
    if node.read_only:
        _make_read_only(new)


def _make_read_only(path: str) -> None:
    try:
        syscalls.make_read_only(path)
        return
    except OSError as error:
        if error.errno != 38:  # ENOSYS: before Linux 5.12
            raise
    points = [path]
    with open("/proc/self/mountinfo", "rb") as stream:
        for line in stream:
            point = os.fsdecode(line.split(b" ")[4].replace(b"\\040", b" "))
            if point.startswith(path + "/"):
                points.append(point)
    for point in points:
        # Flags of the source's mount are locked in a user namespace: they must be given again or the call is refused.
        path_needed = os.statvfs(point).f_flag & (MS_NOSUID | MS_NODEV | 8 | 1024 | 2048)
        syscalls.mount("none", point, None, syscalls.MS_REMOUNT | MS_BIND | syscalls.MS_RDONLY | path_needed)
