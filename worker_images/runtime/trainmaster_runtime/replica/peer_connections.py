"""Whether a replica of a gang has ever connected to another: copies that train alone look like success otherwise.

Looks at the kernel's table of TCP connections. Replicas with addresses of their own are found by these. Replicas that
share an address are found by the gang's ports, and by which processes have the two ends. A connection stays in the
table for a minute after its end, so a short job is seen, too.
"""

from __future__ import annotations

import json
import os
import re

from trainmaster_runtime.launchers import report
from trainmaster_runtime.process import procfs

# torch needs seconds to import, and data may come first: a warning before that would be noise.
WARN_S = 120.0
_CHECK_S = 5.0
# Of a job that ends earlier, too little was seen to judge it.
_SHORTEST_S = 5.0
_HOSTS = 64  # so many names are resolved
KIND = "train.not_connected"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.order import RuntimeOrder


class PeerConnections:
    """Of rank 0's replica in a gang of several replicas with ranks; for any other, nothing is looked at.

    Args:
        started_at: of the processes; monotonic.
        env: of the first process.
        report_path: the replica's report file, for an event.
    """

    def __init__(
        self,
        order: RuntimeOrder,
        env: dict[str, str],
        log: JobLog,
        *,
        started_at: float,
        report_path: str,
    ) -> None:
        self._order = order
        self._log = log
        self._report_path = report_path
        self._started_at = started_at
        count = env.get("PET_NNODES", "1")
        is_off = env.get("TRAINMASTER_LAUNCHER") == "none"
        self._count = int(count) if count.isdigit() and env.get("PET_NODE_RANK") == "0" and not is_off else 1
        self._ports = _ports(env)
        self._addresses: set[str] | None = None
        self._has_warned = False
        self._is_connected = self._count < 2
        # Monotonic; None: nothing is left to look for.
        self.check_at: float | None = None if self._is_connected else started_at + _CHECK_S

    def check(self, now: float) -> None:
        """Look for a connection, and warn once when none has come for long. ``now`` is monotonic."""
        if self.check_at is None or now < self.check_at:
            return
        self._update_connected()
        self.check_at = None if self._is_connected else now + _CHECK_S
        if not self._is_connected and not self._has_warned and now >= self._started_at + WARN_S:
            self._has_warned = True
            self._warn("has not connected to another one for %g s" % (now - self._started_at))

    def finish(self, now: float) -> None:
        """Look for the last time, when the processes have ended, and warn at the end of the log."""
        if self.check_at is not None and now >= self._started_at + _SHORTEST_S:
            self._update_connected()
            if not self._is_connected:
                self._warn("ended and has never connected to another one")

    def _warn(self, what: str) -> None:
        sentence = (
            "%s-%d %s: the %d replicas train alone, each a model of its own, unless the program is meant so. Start it "
            "with a launcher, or let it read RANK and WORLD_SIZE; for independent replicas set `launcher: none`."
            % (self._order.role, self._order.index, what, self._count)
        )
        self._log.say("WARNING: " + sentence)
        report({"TRAINMASTER_REPORT_FILE": self._report_path}, KIND, sentence)

    def _update_connected(self) -> None:
        if self._addresses is None:
            self._addresses = _addresses(self._order.peer_hosts)
        table = procfs.tcp_connections()
        # Of a connection that has ended, the kernel lists the end alone that closed it first.
        self._is_connected = any(
            connection.remote[0] in self._addresses
            or connection.local[1] in self._ports
            or connection.remote[1] in self._ports
            for connection in table
        ) or self._reaches_replica(table)

    def _reaches_replica(self, table: list[procfs.TcpConnection]) -> bool:
        """Whether a connection on this machine joins a process of this replica with a process of another one."""
        own = procfs.socket_inodes(procfs.descendants(os.getpid()))
        ends = {(c.local, c.remote): c.inode for c in table if c.inode}
        others = {ends.get((c.remote, c.local), 0) for c in table if c.inode in own} - own - {0}
        if not others:
            return False
        peers = procfs.of_attempt(self._order.attempt_id, self._order.mark)
        return not others.isdisjoint(procfs.socket_inodes(peers))


def _ports(env: dict[str, str]) -> set[int]:
    """Ports of the gang that only its own processes use, where replicas share an address."""
    texts = [env.get(name, "") for name in ("PET_MASTER_PORT", "MASTER_PORT", "HOROVOD_GLOO_RENDEZVOUS_PORT")]
    texts.append(env.get("TRAINMASTER_MPI_ENDPOINT", "").rpartition(":")[2])
    try:
        roles = json.loads(env.get("TRAINMASTER_LAYOUT", "{}")).get("roles", {})
    except (ValueError, AttributeError):
        roles = {}
    texts += [place.rpartition(":")[2] for places in roles.values() for place in places]
    return {int(text) for text in texts if re.fullmatch("[0-9]+", text)}


def _addresses(hosts: list[str]) -> set[str]:
    """Addresses of the other replicas, without those of this machine."""
    if not hosts or all(host.startswith("127.") for host in hosts):
        return set()
    import socket

    def resolve(host: str) -> set[str]:
        try:
            return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError):
            return set()

    own = resolve(socket.gethostname())
    # Every program's rank 0 is connected to some of the first replicas, or to the last.
    found = {address for host in (*hosts[:_HOSTS], hosts[-1]) for address in resolve(host)}
    return {address for address in found - own if not address.startswith("127.") and address != "::1"}
