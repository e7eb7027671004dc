"""``mpirun`` in a gang: MPI's own program runs once, in the replica of rank 0, and starts processes in all replicas.

Executed by a program of the name ``mpirun`` that is first in PATH. The replicas need neither ssh nor keys: the
``mpirun`` of every other replica connects to rank 0's and waits. Where MPI would start its daemon on a host by ssh, it
calls an agent of ours, which passes the command on to the waiting replica of that host. Replicas on the same machine
have one address, so MPI starts all processes in rank 0's replica there.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from trainmaster_runtime import clock
from trainmaster_runtime.launchers import (
    LAUNCHER_VARIABLE,
    MPI_STARTER,
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main(path: str, args: list[str]) -> NoReturn:
    """``path``: of the program that was called."""
    name = os.path.basename(path)
    if name == MPI_STARTER:
        sys.exit(start_on_host(args))
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
    code = subprocess.call(command)
    server.finish(code)
    return code if code >= 0 else 128 - code


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
    own = _own_host()
    _send(stream, {"secret": _secret(), "waits": own})
    while True:
        order = _receive(stream)
        if order is None:
            say("the connection to rank 0's mpirun is lost")
            return 1
        if "end" in order:
            if order["end"] != 0:
                clock.pause(_FAILED_WAIT_S)
            return int(order["end"])
        done = subprocess.run(["/bin/sh", "-c", order["run"]], stdin=subprocess.DEVNULL, check=False)
        _send(stream, {"code": done.returncode})


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


def _secret() -> str:
    """The attempt's token proves that both ends belong to it; it is not sent itself."""
    try:
        with open(os.environ.get("TRAINMASTER_TOKEN_FILE", ""), "rb") as stream:
            token = stream.read()
    except OSError:
        token = os.environ.get("TRAINMASTER_JOB_ID", "").encode()
    return hashlib.sha256(b"mpi:" + token).hexdigest()


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
