"""Everything before the first of the user's processes: work folder, code, view, environment, peers."""

from __future__ import annotations

import os
import re

from trainmaster_runtime import clock
from trainmaster_runtime.cgroups import Groups, make_groups, name_of
from trainmaster_runtime.order import UserProgram
from trainmaster_runtime.process import job_user, spawn
from trainmaster_runtime.process.exits import ReplicaEnd
from trainmaster_runtime.process.procfs import MARK_VARIABLE
from trainmaster_runtime.view import WORK, Builder, View, ViewFailed, ViewRefused

INPUT = WORK + "/data"
OUTPUT = WORK + "/output"
OWN = WORK + "/.trainmaster"
_HOOKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hooks")
# Where containers have the training library.
_LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "library")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainmaster_runtime.environment import CommandPython
    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.record import StateFolder


class NotStarted(Exception):
    """The command was never started; ``ending`` says why."""

    def __init__(self, ending: ReplicaEnd) -> None:
        super().__init__(ending.sentence)
        self.ending = ending


class PathMap:
    """Where the kernel allows no mounts: maps the job's fixed paths to the real ones in environment and arguments.

    Maps ``/data``, ``/data/output``, … and what lies below them. The longest target wins.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = dict(targets)
        names = "|".join(re.escape(name) for name in sorted(targets, key=len, reverse=True))
        # A path begins at the start, after a blank, a quote, or one of = : , ( [ and is not the middle of another
        # path; file:///data stays, for its slash stands before.
        self._pattern = re.compile(r"(?<![^\s=:,;'\"(\[{<>|&])(" + names + r")(?=$|[/\s:,;'\")\]}<>|&])")

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._targets[match.group(1)], text)

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        return {name: self.text(value) if "/" in value else value for name, value in env.items()}


class PreparedReplica:
    """What the user's processes need, once prepared.

    Attributes:
        job_folder: the real path of ``/data/.trainmaster``.
        python: of the command; ``None``: the one on the path.
        isolation: in words, for people.
    """

    def __init__(self, *, job_folder: str, cwd: str, view: View | None, paths: PathMap | None, groups: Groups) -> None:
        self.job_folder = job_folder
        self.cwd = cwd
        self.view = view
        self.paths = paths
        self.groups = groups
        self.isolation = "none"
        self.python: CommandPython | None = None

    def programs(self, order: RuntimeOrder) -> list[UserProgram]:
        """One program per local process."""
        base = dict(os.environ)
        base.update(order.env)
        base.pop("TRAINMASTER_TOKEN_FILE", None)
        base.update(self._runtime_env(order, base))
        command, args = order.command, order.args
        argv = spawn.argv_of(command, args)
        # In a container the engine has set it by what it knows of the whole node.
        oom_score_adj = None if order.view == "as_is" else spawn.OOM_SCORE_ADJ
        programs = []
        for extra in order.process_env:
            env = {**base, **extra}
            words = argv
            if self.paths is not None:
                words, env = [self.paths.text(word) for word in argv], self.paths.env(env)
            if self.python is not None:
                env.update(self.python.variables)
                env["PATH"] = ":".join([*self._python_folders(self.python), env.get("PATH") or os.defpath])
            if env.get("HOROVOD_SIZE") or env.get("PET_NNODES"):
                env["PATH"] = self._launchers() + ":" + (env.get("PATH") or os.defpath)
            if env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") and not env.get("HOROVOD_GLOO_IFACE"):
                interface = own_interface()
                if interface is not None:
                    env["HOROVOD_GLOO_IFACE"] = interface
            programs.append(UserProgram(words, env, self.cwd, oom_score_adj))
        return programs

    def _python_folders(self, python: CommandPython) -> list[str]:
        """Folders for the front of the path, as the job sees them."""
        if python.has_own_names:
            return python.folders
        python.put_names(self.job_folder + "/python")
        return [(self.job_folder if self.paths is not None else OWN) + "/python", *python.folders]

    def _launchers(self) -> str:
        """The folder of the programs that stand for launchers, as the job sees it."""
        from trainmaster_runtime.launchers import put_launchers

        folder = self.job_folder + "/bin"
        if not os.path.exists(folder):
            put_launchers(folder)
        return folder if self.paths is not None else OWN + "/bin"

    def _runtime_env(self, order: RuntimeOrder, env: dict[str, str]) -> dict[str, str]:
        runtime_env = {
            MARK_VARIABLE: order.mark,
            "PWD": self.cwd,
            "TRAINMASTER_REPORT_FILE": OWN + "/report.jsonl",
            # Lines of the log come when they are printed, not when 8 KiB are full.
            "PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1"),
            # A crash in native code leaves the Python stack in the log; signal and exit code stay what they are.
            "PYTHONFAULTHANDLER": env.get("PYTHONFAULTHANDLER", "1"),
        }
        if order.world is not None:
            runtime_env["TRAINMASTER_WORLD"] = str(order.world)
            runtime_env["TRAINMASTER_WORLD_FILE"] = OWN + "/world.json"
        if os.path.exists(self.job_folder + "/token"):
            runtime_env["TRAINMASTER_TOKEN_FILE"] = OWN + "/token"
        library = order.library or _LIBRARY
        has_library = os.path.isdir(library)
        if has_library:
            runtime_env["TRAINMASTER_LIBRARY"] = library
        if env.get("TRAINMASTER_EXIT_HOOK", "1") != "0":
            runtime_env.update(exit_hook_env(env, OWN + "/exits"))
        elif has_library:
            # Without the hook, which would put it behind the packages of the command's Python.
            runtime_env["PYTHONPATH"] = ":".join(filter(None, (env.get("PYTHONPATH"), library)))
        return runtime_env


def exit_hook_env(env: dict[str, str], notes: str) -> dict[str, str]:
    """Environment by which Python loads the exit hook at its start. ``notes``: the file that the hook appends to."""
    return {
        "TRAINMASTER_EXIT_NOTES": notes,
        "PYTHONPATH": _HOOKS + (":" + env["PYTHONPATH"] if env.get("PYTHONPATH") else ""),
    }


def prepare(
    order: RuntimeOrder, state: StateFolder, token: str, log: JobLog, check_stop: Callable[[float], None]
) -> PreparedReplica:
    """Prepare all of it. Raises :class:`NotStarted`.

    Args:
        token: the attempt's; empty for none.
        check_stop: waits for so many seconds and raises when the replica is to stop.
    """
    # Folders of the groups are made first, for the first to join one waits for the kernel meanwhile.
    groups = make_groups(name_of(order.mark)) if order.use_cgroups else Groups({}, 1)
    try:
        prepared = _prepare(order, state, token, log, groups, check_stop)
        check_stop(0.0)
        _wait_for_peers(order, state, check_stop)
        if order.view == "as_is" and order.world is None and order.process_env:
            _wait_for_rendezvous(order, state, check_stop)
        groups.settle()
        return prepared
    except ViewFailed as error:
        groups.close()
        raise NotStarted(ReplicaEnd("start_refused", None, str(error))) from error
    except OSError as error:
        groups.close()
        cause = "disk_full" if error.errno in (28, 122) else "start_failed"
        # Without the error's own path, which is the host's.
        sentence = "The work folder could not be prepared: %s." % error.strerror
        raise NotStarted(ReplicaEnd(cause, None, sentence)) from error
    except BaseException:
        groups.close()
        raise


def _prepare(
    order: RuntimeOrder,
    state: StateFolder,
    token: str,
    log: JobLog,
    groups: Groups,
    check_stop: Callable[[float], None],
) -> PreparedReplica:
    work = WORK if order.view == "as_is" else state.file("work")
    job_folder = work + "/.trainmaster"
    with job_user.as_root():
        os.makedirs(job_folder, mode=0o700, exist_ok=True)
        for folder in (work, job_folder):
            if order.uid is not None:
                os.chown(folder, order.uid, order.uid)
    if token:
        _put_token(token, job_folder)
    os.close(os.open(job_folder + "/report.jsonl", os.O_WRONLY | os.O_CREAT, 0o600))
    python = _find_python(order, state, log, check_stop) if order.environment else None
    builder = _start_view(order, state, work, log)
    _unpack(order, state, token, work, log, check_stop)
    write_files(order, work)
    view = _finish_view(order, builder, log)
    paths = None
    # The runtime was started where the image says, and has stayed there.
    cwd = os.getcwd() if order.cwd is None else order.cwd
    if order.view != "as_is" and view is None:
        cwd = os.path.realpath(work)
        paths = _map_paths(order, cwd, log)
    prepared = PreparedReplica(job_folder=job_folder, cwd=cwd, view=view, paths=paths, groups=groups)
    prepared.python = python
    if view is not None:
        prepared.isolation = view.description + ("" if order.uid is None else ", user id %d" % order.uid)
    elif paths is not None:
        prepared.isolation = "paths mapped"
    else:
        prepared.isolation = "container"
    return prepared


def _find_python(
    order: RuntimeOrder, state: StateFolder, log: JobLog, check_stop: Callable[[float], None]
) -> CommandPython | None:
    from trainmaster_runtime.environment import EnvironmentRefused, LayerStore, find_python

    try:
        python = find_python(order)
        if python is not None:
            order.needed_paths = [*order.needed_paths, *python.needed_paths]
        if order.environment.get("requirements"):
            python = LayerStore(order, state, log, check_stop).demand(python)
            order.needed_paths = [*order.needed_paths, *python.needed_paths]
    except EnvironmentRefused as error:
        cause = "start_failed" if error.is_transient else "start_refused"
        raise NotStarted(ReplicaEnd(cause, None, str(error))) from error
    return python


def _put_token(token: str, job_folder: str) -> None:
    fd = os.open(job_folder + "/token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, token.encode())
    finally:
        os.close(fd)


def _start_view(order: RuntimeOrder, state: StateFolder, work: str, log: JobLog) -> Builder | None:
    if order.view == "as_is":
        return None
    for mount in order.mounts:
        if not mount.read_only:
            os.makedirs(mount.source, exist_ok=True)
        elif not os.path.exists(mount.source):
            raise ViewFailed(
                "%s: what is to be mounted there does not exist on this node; check `input` and `mounts`."
                % mount.target
            )
    if order.view != "private":
        _go_without_view(order, log, "turned off")
        return None
    staging = state.file("root")
    with job_user.as_root():
        os.makedirs(staging, mode=0o700, exist_ok=True)
    try:
        return Builder(order, work, staging)
    except ViewRefused as error:
        _go_without_view(order, log, str(error))
        return None


def _finish_view(order: RuntimeOrder, builder: Builder | None, log: JobLog) -> View | None:
    if builder is None:
        return None
    try:
        return builder.finish()
    except ViewRefused as error:
        _go_without_view(order, log, str(error))
        return None


def _go_without_view(order: RuntimeOrder, log: JobLog, why: str) -> None:
    if order.uid is not None:
        raise ViewFailed("The job has no view of its own of the file system, which its user id needs: %s." % why)
    shm = "" if order.shm_bytes is None else ", `shm` is not applied"
    log.say(
        "no private view of the file system here (%s): /data is mapped by environment and arguments, "
        "read-only mounts are not enforced%s, and nothing of this machine is hidden from the job" % (why, shm)
    )


def _unpack(
    order: RuntimeOrder,
    state: StateFolder,
    token: str,
    work: str,
    log: JobLog,
    check_stop: Callable[[float], None],
) -> None:
    path = order.code_path
    if path is None and order.code_digest is None:
        return
    from trainmaster_runtime.code_archive import ArchiveRefused, unpack

    reserved = tuple(m.target[len(WORK) + 1 :] for m in order.mounts if m.target.startswith(WORK + "/"))
    try:
        if path is None:
            path = _fetch(order, state, token, log, check_stop)
        state.write_status(phase="pending", detail="Unpacking the code.")
        unpack(path, order.code_digest, work, reserved)
    except ArchiveRefused as error:
        raise NotStarted(ReplicaEnd("start_refused", None, str(error))) from error
    if order.code_path is None:
        os.unlink(path)


def _fetch(
    order: RuntimeOrder, state: StateFolder, token: str, log: JobLog, check_stop: Callable[[float], None]
) -> str:
    """The code archive from the API, in the state folder; returns its path."""
    from trainmaster_runtime.code_archive import CodeAway, fetch

    state.write_status(phase="pending", detail="Fetching the code.")
    path = state.file("code.tar.gz")
    try:
        fetch(order.api_url or "", token, path, say=log.say, wait=check_stop)
    except CodeAway as error:
        raise NotStarted(ReplicaEnd("unknown", None, str(error))) from error
    return path


def write_files(order: RuntimeOrder, work: str) -> None:
    """The order's small files, such as MPI's hostfile, where the job will see them."""
    for path, content in order.files.items():
        inside = path.startswith(WORK + "/") and ".." not in path.split("/")
        mount = next((m for m in order.mounts if path.startswith(m.target + "/")), None)
        if not inside or (mount is not None and mount.read_only):
            raise ViewFailed("The platform's file %s cannot be put there; this is an error of the platform." % path)
        where = work + path[len(WORK) :] if mount is None else mount.source + path[len(mount.target) :]
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "w") as stream:
            stream.write(content)


def _map_paths(order: RuntimeOrder, work: str, log: JobLog) -> PathMap:
    targets = {WORK: work}
    for mount in order.mounts:
        targets[mount.target] = os.path.realpath(mount.source)
        if not mount.target.startswith(WORK + "/"):
            continue
        link = work + mount.target[len(WORK) :]
        try:
            os.makedirs(os.path.dirname(link), exist_ok=True)
            if os.path.isdir(link) and not os.path.islink(link) and not os.listdir(link):
                os.rmdir(link)
            os.symlink(targets[mount.target], link)
        except OSError:
            log.say("%s cannot be linked into the work folder, for the code has something of that name" % mount.target)
    return PathMap(targets)


def _wait_for_peers(order: RuntimeOrder, state: StateFolder, check_stop: Callable[[float], None]) -> None:
    missing = [host for host in order.peer_hosts if not _is_address(host)]
    if not missing:
        return
    import socket

    mark_end(order, has_ended=False)
    end = clock.monotonic() + order.peers_grace_s
    reported_missing: list[str] = []
    pause_s = 0.02
    while True:
        still = []
        for host in missing:
            try:
                socket.getaddrinfo(host, None)
            except (OSError, UnicodeError):
                if not os.path.exists(_end_mark(order, host)):
                    still.append(host)
        missing = still
        if not missing:
            return
        names = ", ".join(missing[:5]) + (" and %d more" % (len(missing) - 5) if len(missing) > 5 else "")
        if clock.monotonic() >= end:
            sentence = "The names of %s did not appear within %g s; the network of the job is not ready." % (
                names,
                order.peers_grace_s,
            )
            raise NotStarted(ReplicaEnd("peers_missing", None, sentence))
        if missing != reported_missing:
            reported_missing = missing
            state.write_status(phase="pending", detail="Waiting for the names of %s." % names)
        # The peers of a gang appear within a second of each other; later the name server is to have some peace.
        check_stop(min(pause_s, max(0.01, end - clock.monotonic())))
        pause_s = min(0.5, 1.3 * pause_s)


def _wait_for_rendezvous(order: RuntimeOrder, state: StateFolder, check_stop: Callable[[float], None]) -> None:
    """Wait for Horovod's store, since Horovod does not. After the timeout it begins anyway: rank 0 may have no
    store.
    """
    from trainmaster_runtime import rendezvous

    env = {**os.environ, **order.env, **order.process_env[0]}
    mark = _end_mark(order, env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", ""))
    end = clock.monotonic() + order.peers_grace_s

    def pause(seconds: float) -> None:
        state.write_status(
            phase="pending", detail="Waiting for Horovod's rendezvous, which the runtime of rank 0 serves."
        )
        check_stop(seconds)

    rendezvous.wait_for(env, lambda: os.path.exists(mark) or clock.monotonic() >= end, pause)


def own_interface(addresses: list[str] | None = None) -> str | None:
    """The network interface that carries the address of the own host name, which peers use; ``None``: there is none.

    Args:
        addresses: instead of the own host name's.
    """
    import fcntl
    import socket
    import struct

    if addresses is None:
        try:
            infos = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        except (OSError, UnicodeError):
            return None
        addresses = [str(entry[4][0]) for entry in infos]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                # SIOCGIFADDR: https://man7.org/linux/man-pages/man7/netdevice.7.html
                answer = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) in addresses:
                return name
    return None


def mark_end(order: RuntimeOrder, *, has_ended: bool) -> None:
    """Leave or take away the mark by which peers that still wait for our name learn that it was there and is gone."""
    if order.view != "as_is" or all(_is_address(host) for host in order.peer_hosts):
        return
    import socket

    path = _end_mark(order, socket.gethostname())
    try:
        if has_ended:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        else:
            os.unlink(path)
    except OSError:  # none there; or no room: then they wait until their patience ends
        pass


def _end_mark(order: RuntimeOrder, host: str) -> str:
    """A file next to the logs, which all replicas of an attempt see."""
    folder = os.path.dirname(OUTPUT + "/.trainmaster/logs/" + order.log_name)
    return "%s/.%s.ended" % (folder, host.partition(".")[0])


def _is_address(host: str) -> bool:
    return host == "localhost" or ":" in host or all(part.isdigit() for part in host.split("."))
