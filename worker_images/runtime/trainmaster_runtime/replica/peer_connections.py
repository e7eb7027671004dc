"""Whether rank 0's replica has connected to all others of its gang: copies that train alone look like success else.

Looks at the kernel's table of TCP connections. Programs of several processes meet at rank 0, so its replica has had a
connection with each. Replicas with addresses of their own are known by these, replicas that share an address by the
processes that have the two ends. A connection stays in the table for a minute after its end, then without a process:
where an address is shared, those at the gang's ports count unless both ends were known before.
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
_HOSTS = 64  # so many names are resolved, so many replicas looked for
_NAMES = 8  # so many replicas a warning names
KIND = "train.not_connected"

_RANKED = ("chief", "worker")
_UNRANKED = ("ps", "scheduler", "evaluator")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.order import RuntimeOrder

    Endpoint = Tuple[str, int]


class PeerConnections:
    """Of rank 0's replica in a gang of several replicas with ranks; for any other, nothing is looked at.

    With parameter servers, workers need not meet, and an elastic gang changes: there, a connection to any replica
    counts for all.

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
        places = _places(env)
        others = [name for name in places if name != "%s-%d" % (order.role, order.index)]
        roles = {_role(name) for name in places}
        roles = roles.intersection(_RANKED) or roles.difference(_UNRANKED)
        ranked = [name for name in others if _role(name) in roles]
        if not places:
            ranked = ["%s-%d" % (order.role, index) for index in range(1, self._count)]
        self._is_any_enough = order.world is not None or not {"ps", "scheduler"}.isdisjoint(map(_role, others))
        self._missing = set(_first(ranked))
        self._hosts = {name: places[name].rpartition(":")[0] for name in _first(others) if name in places}
        self._ports = _ports(env, places)
        # Replicas by address. None: not resolved yet.
        self._addresses: dict[str, set[str]] | None = None
        self._known: set[frozenset[Endpoint]] = set()  # connections whose two processes were known
        self._anonymous: set[frozenset[Endpoint]] = set()  # with no known process at the other end
        self._has_warned = False
        self._is_connected = self._count < 2
        # Monotonic; None: nothing is left to look for.
        self.check_at: float | None = None if self._is_connected else started_at + _CHECK_S

    def check(self, now: float) -> None:
        """Look for connections, and warn once when some have not come for long. ``now`` is monotonic."""
        if self.check_at is None or now < self.check_at:
            return
        self._update_connected()
        self.check_at = None if self._is_connected else now + _CHECK_S
        if not self._is_connected and not self._has_warned and now >= self._started_at + WARN_S:
            self._has_warned = True
            self._warn("has not connected to %%s for %g s" % (now - self._started_at))

    def finish(self, now: float) -> None:
        """Look for the last time, when the processes have ended, and warn at the end of the log."""
        if self.check_at is not None and now >= self._started_at + _SHORTEST_S:
            self._update_connected()
            if not self._is_connected:
                self._warn("ended and has never connected to %s")

    def _warn(self, what: str) -> None:
        missing = sorted(self._missing, key=lambda name: (_role(name), int(name.rpartition("-")[2])))
        if self._is_any_enough or len(missing) >= min(self._count - 1, _HOSTS):
            others, alone = "another one", "the %d replicas train alone, each" % self._count
        else:
            others = ", ".join(missing[:_NAMES])
            if len(missing) > _NAMES:
                others += " and %d more" % (len(missing) - _NAMES)
            alone = "%d of the %d replicas train apart from it, on" % (len(missing), self._count)
        sentence = (
            "%s-%d %s: %s a model of its own, unless the program is meant so. Start it with a launcher, or let it read "
            "RANK and WORLD_SIZE; for independent replicas set `launcher: none`."
            % (self._order.role, self._order.index, what % others, alone)
        )
        self._log.say("WARNING: " + sentence)
        report({"TRAINMASTER_REPORT_FILE": self._report_path}, KIND, sentence)

    def _update_connected(self) -> None:
        if self._addresses is None:
            self._addresses, unresolved = _addresses(self._hosts)
            self._missing -= unresolved
        table = procfs.tcp_connections()
        connected = self._at_addresses(table) | self._by_processes(table)
        self._missing -= connected
        # Without addresses of their own, they are those that the anonymous connections may lead to.
        sharing = self._missing.difference(*self._addresses.values())
        self._is_connected = not self._missing or (
            bool(connected or self._anonymous)
            if self._is_any_enough
            else sharing == self._missing and len(self._anonymous) >= len(sharing)
        )

    def _at_addresses(self, table: list[procfs.TcpConnection]) -> set[str]:
        """Replicas with addresses of their own."""
        addresses = self._addresses or {}
        return {name for connection in table for name in addresses.get(connection.remote[0], ())}

    def _by_processes(self, table: list[procfs.TcpConnection]) -> set[str]:
        """Replicas on this machine with a process to which a connection leads from a process of this replica."""
        own = procfs.socket_inodes(procfs.descendants(os.getpid()))
        ends = {(c.local, c.remote): c.inode for c in table if c.inode}
        found = {}  # the connection by the socket at its other end
        for connection in table:
            pair = frozenset((connection.local, connection.remote))
            other = ends.get((connection.remote, connection.local), 0)
            if pair in self._known:
                continue
            if not connection.inode:
                if not other and not self._ports.isdisjoint((connection.local[1], connection.remote[1])):
                    self._anonymous.add(pair)
            elif connection.inode in own and other in own:
                self._known.add(pair)
            elif connection.inode in own and other:
                found[other] = pair
        return self._owners(found) if found else set()

    def _owners(self, found: dict[int, frozenset[Endpoint]]) -> set[str]:
        names = set()
        for pid, name in procfs.of_attempt(self._order.attempt_id, self._order.mark).items():
            for inode in procfs.socket_inodes([pid]).intersection(found):
                self._known.add(found.pop(inode))
                names.add(name)
        at_ports = {inode for inode, pair in found.items() if any(port in self._ports for _, port in pair)}
        # Processes of other users, whose sockets are not to be seen.
        for inode in at_ports.difference(procfs.socket_inodes(procfs.pids()) if at_ports else ()):
            self._anonymous.add(found[inode])
        return names


def _role(name: str) -> str:
    return name.rpartition("-")[0]


def _first(names: list[str]) -> list[str]:
    return names[:_HOSTS] + names[_HOSTS:][-1:]


def _places(env: dict[str, str]) -> dict[str, str]:
    """``host:port`` of each replica of the gang, by its name; in the order of the ranks for those that have one."""
    try:
        roles = json.loads(env.get("TRAINMASTER_LAYOUT", "{}")).get("roles", {})
    except (ValueError, AttributeError):
        return {}
    names = sorted(roles, key=lambda role: (*_RANKED, role).index(role))
    return {"%s-%d" % (role, index): place for role in names for index, place in enumerate(roles[role])}


def _ports(env: dict[str, str], places: dict[str, str]) -> set[int]:
    """Ports of the gang that only its own processes use, where replicas share an address."""
    texts = [env.get(name, "") for name in ("PET_MASTER_PORT", "MASTER_PORT", "HOROVOD_GLOO_RENDEZVOUS_PORT")]
    texts.append(env.get("TRAINMASTER_MPI_ENDPOINT", "").rpartition(":")[2])
    texts += [place.rpartition(":")[2] for place in places.values()]
    return {int(text) for text in texts if re.fullmatch("[0-9]+", text)}


def _addresses(hosts: dict[str, str]) -> tuple[dict[str, set[str]], set[str]]:
    """Names of replicas by address, without the addresses of this machine, and those whose hosts have no address."""
    if all(host.startswith("127.") for host in hosts.values()):
        return {}, set()
    import socket

    def resolve(host: str) -> set[str]:
        try:
            return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError):
            return set()

    own = resolve(socket.gethostname())
    found: dict[str, set[str]] = {}
    unresolved = set()
    for name, host in hosts.items():
        addresses = resolve(host)
        if not addresses:
            unresolved.add(name)
        for address in addresses - own:
            if not address.startswith("127.") and address != "::1":
                found.setdefault(address, set()).add(name)
    return found, unresolved
