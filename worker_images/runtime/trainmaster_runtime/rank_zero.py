"""Launchers that start once, in the replica of rank 0: ``mpirun``, and a command in a Ray cluster of all replicas.

Executed by a program of the launcher's name that is first in PATH. In every other replica this program connects to
rank 0's, with the attempt's secret, and ends when rank 0's command has ended, with its exit code.

- MPI needs neither ssh nor keys: where it would start its daemon on a host by ssh, it calls an agent of ours, which
  passes the command on to the waiting replica of that host. Replicas on the same machine have one address, so MPI
  starts all processes in rank 0's replica there.
- ``ray symmetric-run -- command``: rank 0's replica starts Ray's head node, the others join it with a node each, and
  the command runs once, next to the head node. ``ray.init()`` of a plain program leads here, too: see
  ``hooks/trainmaster_imports.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from trainmaster_runtime import clock
from trainmaster_runtime.launchers import (
    LAUNCHER_VARIABLE,
    MPI_STARTER,
    RAY_NAME,
    LauncherOptions,
    Machines,
    leave_to_first,
    next_program,
    report_added,
    say,
    take_ranks_away,
)

CONNECT_S = 600.0
# After MPI has failed the platform ends the gang; a replica that ends by itself would only hide which process failed.
_FAILED_WAIT_S = 30.0
_POLL_S = 0.2
_HOSTFILE = "OMPI_MCA_orte_default_hostfile"
_STOP_S = 10.0
_START_LOG = "/start.log"  # in a node's folder
# Options of `ray symmetric-run` that the platform sets itself.
_RAY_PLACES = ("address", "min_nodes", "head", "port", "node_ip_address", "block", "temp_dir")
_RAY_FLAGS = frozenset({"block", "head", "no_monitor", "disable_usage_stats", "enable_object_reconstruction"})

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main(path: str, args: list[str]) -> NoReturn:
    """``path``: of the program that was called."""
    name = os.path.basename(path)
    if name == MPI_STARTER:
        sys.exit(start_on_host(args))
    if name == RAY_NAME:
        run_ray(path, args)
    real = next_program(path, os.environ)
    if real is None:
        sys.stderr.write("%s: not found: install OpenMPI where the job runs, such as in its image\n" % name)
        sys.exit(127)
    machines = Machines(os.environ)
    is_question = any(arg in ("-h", "--help", "-V", "--version") for arg in args[:1])
    is_off = LAUNCHER_VARIABLE in os.environ or os.environ.get("TRAINMASTER_LAUNCHER") == "none"
    if machines.count < 2 or is_question or is_off or not os.environ.get("TRAINMASTER_MPI_ENDPOINT"):
        os.execv(real, [path, *args])  # noqa: S606 (MPI's own program, as the user wants it)
    leave_to_first(name)
    take_ranks_away(os.environ, name)
    if machines.rank:
        say("%s: rank 0's replica runs it; processes for this replica are started from there" % name)
        sys.exit(_wait_for_commands())
    sys.exit(_run_real(name, [real, *args], machines))


def _run_real(name: str, command: list[str], machines: Machines) -> int:
    """MPI's own program in rank 0's replica, while the other replicas listen to it; returns its exit code."""
    agent = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), MPI_STARTER)
    hostfile = os.environ.get(_HOSTFILE, "")
    # The same for OpenMPI 4 and 5, under their names.
    os.environ.update(OMPI_MCA_plm_rsh_agent=agent, OMPI_MCA_plm_rsh_no_tree_spawn="1")
    os.environ.update(PRTE_MCA_plm_ssh_agent=agent, PRTE_MCA_plm_ssh_no_tree_spawn="1")
    os.environ.update(PRTE_MCA_prte_default_hostfile=hostfile)
    if os.geteuid() == 0:
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        os.environ.update(PRTE_ALLOW_RUN_AS_ROOT="1", PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # Programs that read MPI's ranks and meet by torch's rules need rank 0's address.
    os.environ.update(MASTER_ADDR=machines.address, MASTER_PORT=machines.port)
    hosts = os.environ.get("TRAINMASTER_HOSTS", "")
    report_added(name, ["run once, by rank 0, with the hosts %s" % hosts])
    server = CommandServer(machines.count - 1)
    server.start()
    code = _exit_code(_start_command(command).wait())
    server.finish(code)
    return code


def _start_command(command: list[str]) -> subprocess.Popen[bytes]:
    """Start rank 0's command; SIGTERM, which comes here alone, is passed on to it."""
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    return process


def _exit_code(status: int) -> int:
    """Of a shell, for a process that may have died of a signal."""
    return status if status >= 0 else 128 - status


class CommandServer:
    """Listens in rank 0's replica: to the waiting replicas, and to the agents that MPI calls.

    ``count``: of the other replicas.
    """

    def __init__(self, count: int) -> None:
        host, _, port = os.environ["TRAINMASTER_MPI_ENDPOINT"].rpartition(":")
        self._count = count
        self._listener = socket.create_server((host.strip("[]") if host.startswith("127.") else "", int(port)))
        self._waiting: list[tuple[str, Any]] = []  # host of a replica, its connection
        self._all: list[Any] = []
        self._has_changed = threading.Condition()

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def finish(self, code: int) -> None:
        """Let all replicas go with MPI's exit code; those that connect late, too."""
        end = clock.monotonic() + (CONNECT_S if code == 0 else 5.0)
        with self._has_changed:
            while len(self._all) < self._count and self._has_changed.wait(max(0.0, end - clock.monotonic())):
                pass
            for stream in self._all:
                _send(stream, {"end": code})

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rwb")
        first = _receive(stream)
        if first is None or first.get("secret") != _secret():
            connection.close()
        elif "waits" in first:
            with self._has_changed:
                self._waiting.append((first["waits"], stream))
                self._all.append(stream)
                self._has_changed.notify_all()
        else:
            _send(stream, {"code": self._pass_on(first["host"], first["command"])})

    def _pass_on(self, host: str, command: str) -> int:
        with self._has_changed:
            if not self._has_changed.wait_for(lambda: self._find(host) is not None, CONNECT_S):
                return 1
            entry = self._find(host)
            assert entry is not None  # noqa: S101 (just waited for)
            self._waiting.remove(entry)
        _send(entry[1], {"run": command})
        answer = _receive(entry[1])
        with self._has_changed:
            self._waiting.append(entry)
            self._has_changed.notify_all()
        return 1 if answer is None else int(answer["code"])

    def _find(self, host: str) -> tuple[str, Any] | None:
        return next((entry for entry in self._waiting if entry[0] == host), None)


def start_on_host(args: list[str]) -> int:
    """Stands for ssh: ``agent [options] host command…``; returns the command's exit code there."""
    while args and args[0].startswith("-"):
        args = args[1:]
    stream = _connect()
    _send(stream, {"secret": _secret(), "host": args[0], "command": " ".join(args[1:])})
    answer = _receive(stream)
    return 1 if answer is None else int(answer["code"])


def _wait_for_commands() -> int:
    """In the other replicas: run what MPI would run here by ssh, until rank 0's program has ended."""
    stream = _connect()
    _send(stream, {"secret": _secret(), "waits": _own_host()})
    while True:
        order = _receive(stream)
        if order is None or "end" in order:
            return _end_with_rank_zero(order, "mpirun")
        done = subprocess.run(["/bin/sh", "-c", order["run"]], stdin=subprocess.DEVNULL, check=False)
        _send(stream, {"code": done.returncode})


def _end_with_rank_zero(order: dict[str, Any] | None, name: str) -> int:
    """The exit code of another replica's launcher ``name``. ``order``: rank 0's last one; ``None``: it is lost."""
    if order is None:
        say("the connection to rank 0's %s is lost" % name)
        return 1
    if order["end"] != 0:
        clock.pause(_FAILED_WAIT_S)
    return int(order["end"])


def run_ray(path: str, args: list[str]) -> NoReturn:
    """``path``: of the program ``ray`` that was called. Whatever else than ``symmetric-run`` is Ray's own."""
    machines = Machines(os.environ)
    is_off = LAUNCHER_VARIABLE in os.environ or os.environ.get("TRAINMASTER_LAUNCHER") == "none"
    separator = args.index("--") if "--" in args else 0
    options = LauncherOptions(args[1:separator], _RAY_FLAGS)
    command = args[separator + 1 :]
    is_run = args[:1] == ["symmetric-run"] and bool(separator) and bool(command)
    is_alone = machines.count < 2 or not os.environ.get("TRAINMASTER_MPI_ENDPOINT")
    if is_run and is_alone and not options.has("address"):
        os.execvp(command[0], command)  # noqa: S606 (ray.init() starts a cluster of its own in it)
    is_complete = (options.count("min_nodes") or 1) > 1 and machines.is_address(options.value("address"))
    if not is_run or is_alone or is_off or is_complete:
        real = next_program(path, os.environ)
        if real is None:
            sys.exit(_without_ray())
        os.execv(real, [path, *args])  # noqa: S606 (Ray's own program, as the user wants it)
    leave_to_first(RAY_NAME)
    take_ranks_away(os.environ, RAY_NAME)
    node = RayNode(path, command, options.without(*_RAY_PLACES), machines, has_cpus=options.has("num_cpus"))
    sys.exit(_run_on_ray(node, command, machines) if machines.rank == 0 else _join_ray(node))


def _without_ray() -> int:
    sys.stderr.write("ray: not found: install Ray where the job runs, such as in its image\n")
    return 127


def _run_on_ray(node: RayNode, command: list[str], machines: Machines) -> int:
    """Rank 0's replica: the head node, and the command, while the other replicas join; returns the exit code."""
    node.start(["--head", "--port=" + machines.port])
    end = clock.monotonic() + CONNECT_S
    while not node.is_listening():
        if node.has_ended() or clock.monotonic() > end:
            return node.end("Ray's head node did not start") or 1
        clock.pause(_POLL_S)
    server = CommandServer(machines.count - 1)
    server.start()
    report_added(RAY_NAME, ["run once, by rank 0, with RAY_ADDRESS=" + node.address, *node.options])
    try:
        process = _start_command(command)
    except OSError as error:
        sys.stderr.write("%s: %s\n" % (command[0], error.strerror))
        server.finish(127)
        node.stop()
        return 127
    while process.poll() is None and not node.has_ended():
        clock.pause(_POLL_S)
    if process.poll() is None:
        failure = node.end("Ray's head node has ended while the command runs") or 1
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        server.finish(failure)
        return failure
    code = _exit_code(process.returncode)
    server.finish(code)
    node.stop()
    return code


def _join_ray(node: RayNode) -> int:
    """The other replicas: a node, until rank 0's command has ended; returns the exit code."""
    say("ray: rank 0's replica runs the command; this replica is a node of its cluster")
    stream = _connect()  # rank 0 listens when its head node is up
    _send(stream, {"secret": _secret(), "waits": _own_host()})
    orders: list[dict[str, Any] | None] = []
    threading.Thread(target=lambda: orders.append(_receive(stream)), daemon=True).start()
    node.start(["--address=" + node.address])
    # A program in rank 0's replica that writes its last checkpoint on SIGTERM needs this node until then.
    terminations: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: terminations.append(number))
    while not orders and not node.has_ended():
        clock.pause(_POLL_S)
    if not orders:
        return node.end("Ray's node has ended while rank 0's command runs") or 1
    node.stop()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if terminations:
        return _exit_code(-signal.SIGTERM)
    return _end_with_rank_zero(orders[0], RAY_NAME)


class RayNode:
    """Ray's processes of this replica, as ``ray start --block`` starts them.

    Attributes:
        address: of the head node.
        options: of ``ray start``, for people.
    """

    def __init__(
        self, path: str, command: list[str], options: list[str], machines: Machines, *, has_cpus: bool
    ) -> None:
        is_python = re.fullmatch(r"python[0-9.]*", os.path.basename(command[0])) is not None
        python = shutil.which(command[0]) if is_python else None
        # Ray of the command's Python; else the next one in PATH.
        real = None if python else next_program(path, os.environ)
        self._program = [real] if real else [python or "python", "-m", "ray.scripts.scripts"]
        self._port = machines.port
        self._host = machines.address
        self.address = "%s:%s" % (machines.address, machines.port)
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if not has_cpus and not machines.has_gpus and threads.isdigit():
            options = ["--num-cpus=%d" % (int(threads) * machines.processes), *options]
        self.options = options
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        os.environ["RAY_ADDRESS"] = self.address
        os.environ["TRAINMASTER_RAY_NODES"] = str(machines.count)
        # Only processes of this attempt may use the cluster; from Ray 2.52 on.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", _secret("ray"))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")  # nothing is left to move elsewhere
        # For Lightning's Trainer below a launcher like torchrun; in Ray's workers its strategy counts the nodes.
        os.environ.pop("PL_TRAINER_NUM_NODES", None)

    def start(self, place: list[str]) -> None:
        """``place``: the options that make it the head node, or the address of the head node."""
        # The paths of Ray's sockets must be short. With a common folder, each node would print all logs of a machine.
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        own = ["--node-ip-address=" + host for host in _own_address()]
        # Several nodes on one machine must not share ranges of ports.
        ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        words = [*self._program, "start", *place, *own, "--temp-dir=" + self._folder, *ports, *self.options, "--block"]
        try:
            with open(self._folder + _START_LOG, "wb") as log:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a signal for the job's processes is not for it
                )
        except OSError:
            self.stop()
            sys.exit(_without_ray())

    def is_listening(self) -> bool:
        """Whether the head node listens."""
        try:
            socket.create_connection((self._host, int(self._port)), timeout=5.0).close()
        except OSError:
            return False
        return True

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def end(self, sentence: str) -> int:
        """Show why it has ended by itself; returns its exit code."""
        code = None if self._process is None else self._process.poll()
        with open(self._folder + _START_LOG, "rb") as log:
            os.write(2, b"".join(log.readlines()[-20:]))
        # As the replica's own last line it is the reason of its end.
        os.write(2, ("ray: %s (exit code %s); its last lines are above\n" % (sentence, code)).encode())
        self.stop()
        return 0 if code is None else _exit_code(code)

    def stop(self) -> None:
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _own_address() -> list[str]:
    """The IP address of this replica, by which the other nodes reach it; empty: unknown."""
    try:
        return [socket.gethostbyname(_own_host())]
    except OSError:
        return []


def _own_host() -> str:
    """This replica's host as rank 0's host file names it: the hosts stand in rank order, each with its processes."""
    hosts = [entry.rpartition(":")[0] for entry in os.environ.get("TRAINMASTER_HOSTS", "").split(",")]
    rank = Machines(os.environ).rank
    return hosts[rank] if rank < len(hosts) else hosts[0]  # shared hosts: nothing is passed on


def _connect() -> Any:
    host, _, port = os.environ["TRAINMASTER_MPI_ENDPOINT"].rpartition(":")
    end = clock.monotonic() + CONNECT_S
    while True:
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=10.0)
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return connection.makefile("rwb")
        except OSError:
            if clock.monotonic() > end:
                raise
            clock.pause(_POLL_S)


def _secret(purpose: str = "mpi") -> str:
    """The attempt's token proves that both ends belong to it; it is not sent itself."""
    try:
        with open(os.environ.get("TRAINMASTER_TOKEN_FILE", ""), "rb") as stream:
            token = stream.read()
    except OSError:
        token = os.environ.get("TRAINMASTER_JOB_ID", "").encode()
    return hashlib.sha256(purpose.encode() + b":" + token).hexdigest()


def _send(stream: Any, message: dict[str, object]) -> None:
    try:
        stream.write(json.dumps(message).encode() + b"\n")
        stream.flush()
    except OSError:
        pass


def _receive(stream: Any) -> dict[str, Any] | None:
    try:
        line = stream.readline()
        message = json.loads(line) if line else None
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
