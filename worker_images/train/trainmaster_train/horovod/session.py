"""What ``hvd.init()`` made, and what it knows afterwards: the gang of this process, its ranks, its process sets.

Each framework has a session of its own; the functions of its ``hvd`` are that session's.
"""

from __future__ import annotations

import atexit
from typing import Callable, Iterable, List, Optional, Sequence, Tuple, Union

from trainmaster_train.horovod.controller.messages import GLOBAL_SET
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.gang import ProcessGang
from trainmaster_train.horovod.settings import HorovodSettings, read_settings
from trainmaster_train.horovod.elastic_membership import ElasticMembership


class ProcessSet:
    """Some of the ranks, that run operations among themselves: ``process_set=`` of each operation."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: Optional[List[int]] = sorted({int(rank) for rank in ranks})
        self.process_set_id: Optional[int] = None
        self._session: Optional[HorovodSession] = None

    def included(self) -> bool:
        """Whether this process is one of them."""
        own_rank, members = self._rank_and_members()
        return own_rank in members

    def rank(self) -> int:
        """This process's number in the set; -1 where it is not in it."""
        own_rank, members = self._rank_and_members()
        return members.index(own_rank) if own_rank in members else -1

    def size(self) -> int:
        return len(self._rank_and_members()[1])

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def bind(self, session: Optional[HorovodSession], number: Optional[int]) -> None:
        """Say whose set this is, and its number there; ``None``: it is nobody's any more."""
        self._session, self.process_set_id = session, number

    def _rank_and_members(self) -> Tuple[int, Tuple[int, ...]]:
        """This process's rank among all, and the ranks of the set."""
        number = set_number(self)
        assert self._session is not None  # noqa: S101 (who has a number is bound)
        gang = self._session.gang()
        return gang..ranks.rank, gang.engine.members(number)


class HorovodSession:
    """A process's membership in a gang, as one framework's ``hvd`` shows it.

    Args:
        meet: makes the gang of the world that the environment tells of.
        worlds: where an elastic job's process goes on when its world ends.
    """

    def __init__(self, form_gang: Callable[[HorovodSettings], ProcessGang], membership: ElasticMembership) -> None:
        self._form_gang = form_gang
        self._membership = membership
        self._gang: Optional[ProcessGang] = None
        self._sets: List[ProcessSet] = []
        self.global_process_set = ProcessSet([])
        self.global_process_set.ranks = None  # all, whatever init finds
        self.global_process_set.bind(self, GLOBAL_SET)
        atexit.register(self.shutdown)

    def init(
        self, comm: Optional[Sequence[int]] = None, process_sets: Union[str, Sequence[ProcessSet], None] = None
    ) -> None:
        """Meet the other processes. Does nothing the second time.

        The ranks come from ``HOROVOD_RANK``/``HOROVOD_SIZE`` or ``RANK``/``WORLD_SIZE``, which the platform sets, and
        so does torchrun. A process that nothing is said to is alone. Torch's ranks meet at ``MASTER_ADDR`` and
        ``MASTER_PORT``, or where torch.distributed is initialized already, in that world; others at the key-value store
        ``HOROVOD_GLOO_RENDEZVOUS_ADDR`` and ``HOROVOD_GLOO_RENDEZVOUS_PORT``.

        Args:
            comm: as in Horovod; only all ranks can be given here.
            process_sets: sets to add right away; ``"dynamic"`` is accepted, for sets can always be added.

        Raises:
            HorovodInternalError: not all processes came in time; says which are missing.
            ValueError: a variable holds what it cannot hold, or says nothing where it must.
        """
        if self._gang is not None and self._gang.engine.failure is None:
            return
        self.shutdown()
        self._membership.wait_to_join()
        gang = self._gang = self._form_newest_gang(read_settings())
        if comm is not None and sorted(comm) not in ([], list(range(gang..ranks.size))):
            self.shutdown()
            raise ValueError("hvd.init(comm=…) takes all ranks or none here; for some of them use process sets.")
        if process_sets is not None and not isinstance(process_sets, str):
            for process_set in process_sets:
                self.add_process_set(process_set)

    def shutdown(self) -> None:
        """Leave the gang: what others still want of this process fails at once. ``init`` may be called again."""
        leaving, self._gang = self._gang, None
        while self._sets:
            self._sets.pop().bind(None, None)
        if leaving is not None:
            leaving.close()

    def is_initialized(self) -> bool:
        return self._gang is not None

    def gang(self) -> ProcessGang:
        """Raises ``ValueError`` before ``init``, as Horovod does."""
        if self._gang is None:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return self._gang

    def rank(self) -> int:
        return self.gang()..ranks.rank

    def size(self) -> int:
        return self.gang()..ranks.size

    def local_rank(self) -> int:
        """Among the processes of this host (of this replica): the number of the process's GPU."""
        return self.gang()..ranks.local_rank

    def local_size(self) -> int:
        return self.gang()..ranks.local_size

    def cross_rank(self) -> int:
        """This host's number among those that have a process of this local rank."""
        return self.gang()..ranks.cross_rank

    def cross_size(self) -> int:
        return self.gang()..ranks.cross_size

    def is_homogeneous(self) -> bool:
        """Whether all hosts have as many processes."""
        return self.gang()..ranks.is_homogeneous

    def barrier(self, process_set: Optional[ProcessSet] = None) -> None:
        """Wait until all ranks (of the set) are here."""
        self.gang().barrier(GLOBAL_SET if process_set is None else set_number(process_set))

    def add_process_set(self, process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
        """Make a process set usable. All ranks call it, members or not, in the same order."""
        added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        if added.process_set_id is not None:
            raise ValueError(f"{added} was added already.")
        added.bind(self, self.gang().add_set(added.ranks or []))
        self._sets.append(added)
        return added

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Give a set up. All ranks call it, members or not, and it returns when all have. ``False``, at once: it is
        that of all ranks, or not there.
        """
        number = process_set.process_set_id
        if number is None or number == GLOBAL_SET:
            return False
        self.gang().remove_set(number)
        process_set.bind(None, None)
        self._sets.remove(process_set)
        return True

    def _form_newest_gang(self, settings: HorovodSettings) -> ProcessGang:
        """Where the platform tells of worlds, one that breaks while all meet is followed by the next."""
        while True:
            try:
                return self._form_gang(settings)
            except HorovodInternalError:
                if self._membership.own() is None or not self._membership.rejoin():
                    raise


def set_number(process_set: ProcessSet) -> int:
    """Raises ``ValueError`` for a set that was never added."""
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not known: call hvd.add_process_set() with it on all ranks first.")
    return process_set.process_set_id
