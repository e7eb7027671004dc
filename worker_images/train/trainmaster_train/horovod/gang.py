"""One process's membership in the gang, from ``hvd.init()`` to ``hvd.shutdown()``, for every framework."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from trainmaster_train.horovod.controller.engine import CollectiveEngine
from trainmaster_train.horovod.controller.handshake import KEY_BYTES, mac, own_key
from trainmaster_train.horovod.controller.link import ControlLink, accept_all, connect, listen
from trainmaster_train.horovod.controller.messages import (
    ADD_SET,
    BARRIER,
    GLOBAL_SET,
    JOIN,
    REMOVE_SET,
    UNNAMED,
    Backend,
    CollectiveRequest,
    Handle,
)
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.settings import HorovodRanks, HorovodSettings

# Rank 0 publishes a text, and the others fetch it.
Publish = Callable[[str], None]
Fetch = Callable[[], str]


class ProcessGang:
    """The connected ranks, and the engine that runs their operations."""

    def __init__(
        self, ranks: HorovodRanks, links: Dict[int, ControlLink], backend: Backend, settings: HorovodSettings
    ) -> None:
        self.ranks = ranks
        self.backend = backend
        self.engine = CollectiveEngine(ranks.rank, ranks.size, links, backend, settings)
        self._counts: Dict[str, int] = {}

    def next_name(self, kind: str, process_set: int = GLOBAL_SET) -> str:
        """A name for an unnamed operation: the n-th of its kind has the same name on all ranks."""
        key = f"{kind}.{process_set}" if process_set else kind
        self._counts[key] = self._counts.get(key, 0) + 1
        return f"{key}{UNNAMED}{self._counts[key]}"

    def return_name(self, kind: str) -> None:
        """Take back the last generated name of an operation of all ranks: it was not used."""
        self._counts[kind] -= 1

    def check_root(self, root: int, process_set: int) -> None:
        """Raises ``ValueError`` for a root that is not in the process set."""
        members = self.engine.members(process_set)
        if root not in members:
            raise ValueError(f"root_rank={root} is not among the ranks {list(members)[:16]} of the process set.")

    def run(self, request: CollectiveRequest, entry: Any = None) -> Handle:
        """Submit one operation and wait for it."""
        (handle,) = self.engine.submit([request], [entry], will_wait=True)
        return self.engine.wait(handle)

    def barrier(self, process_set: int = GLOBAL_SET) -> None:
        self.run(CollectiveRequest(self.next_name(BARRIER, process_set), BARRIER, process_set=process_set))

    def join(self) -> int:
        """Wait until all ranks joined; returns the last one. Until then this rank contributes zeros."""
        return self.run(CollectiveRequest("join", JOIN)).result

    def add_set(self, ranks: Sequence[int]) -> int:
        """Create a process set; returns its number. All ranks call it with the same ranks.

        Raises:
            ValueError: ``ranks`` is empty, or contains an unknown rank.
        """
        members = tuple(sorted({int(rank) for rank in ranks}))
        if not members or members[0] < 0 or members[-1] >= self.ranks.size:
            raise ValueError(f"process set {list(ranks)}: its ranks must be among 0 to {self.ranks.size - 1}.")
        return self.run(CollectiveRequest(self.next_name(ADD_SET), ADD_SET, shape=members), members).result

    def remove_set(self, number: int) -> None:
        """Remove a process set. All ranks call it; operations still in flight there fail."""
        self.run(CollectiveRequest(f"{REMOVE_SET}.{number}", REMOVE_SET, shape=(number,)))

    def close(self) -> None:
        self.engine.close()


def rendezvous(
    rank: int,
    size: int,
    announcement: Dict[str, Any],
    *,
    rank_0_host: str,
    publish: Publish,
    fetch: Fetch,
    settings: HorovodSettings,
    key: Optional[bytes] = None,
) -> Tuple[Dict[int, ControlLink], List[Dict[str, Any]]]:
    """Connect every rank with rank 0; returns the links, and the announcements of all ranks.

    Args:
        announcement: this rank's own, see :func:`trainmaster_train.horovod.own_announcement`.
        rank_0_host: a name or address of rank 0 that others can reach; used by rank 0 alone.
        key: the gang's key; ``None``: that of the process, or without one a key that rank 0 creates and publishes.
            ``publish`` must then be private to the gang.

    Raises:
        HorovodInternalError: a rank did not come in time; names it.
        ValueError: the attempt's token cannot be read.
    """
    if size == 1:
        return {}, [announcement]
    key = key or own_key()
    if rank == 0:
        with listen(rank_0_host) as listener:
            port = listener.getsockname()[1]
            hosts = list(dict.fromkeys([rank_0_host, *_own_addresses()]))
            contact: Dict[str, Any] = {"hosts": hosts, "port": port}
            if key is None:
                key = secrets.token_bytes(KEY_BYTES)
                contact["key"] = key.hex()
            contact["seal"] = _seal(key, contact)
            publish(json.dumps(contact))
            return accept_all(listener, size=size, key=key, announcement=announcement, timeout_s=settings.start_s)
    contact = json.loads(fetch())
    if key is None:
        key = bytes.fromhex(contact.get("key", ""))
    if not key or not hmac.compare_digest(str(contact.get("seal")).encode(), _seal(key, contact).encode()):
        # A forged address would allow a man in the middle of two authenticated ranks.
        raise HorovodInternalError(
            f"hvd.init: rank {rank} and rank 0 have different keys: all need the token file of the same attempt "
            "(TRAINMASTER_TOKEN_FILE), or outside the platform the same HOROVOD_KEY."
        )
    addresses = [(host, contact["port"]) for host in contact["hosts"]]
    link, announcements = connect(addresses, rank=rank, key=key, announcement=announcement, timeout_s=settings.start_s)
    return {0: link}, announcements


def _seal(key: bytes, contact: Dict[str, Any]) -> str:
    return mac(key, b"where rank 0 is: ", json.dumps([contact["hosts"], contact["port"]]).encode()).hex()


def _own_addresses() -> List[str]:
    """Addresses of this host's name that others may reach; without loopback addresses, which are local to each host."""
    try:
        infos = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(entry[4][0]) for entry in infos if not str(entry[4][0]).startswith("127.")]
