"""The state behind ``hvd.init()``: the gang of this process, its ranks, its process sets.

Each framework has a session of its own, whose methods are the functions of its ``hvd``. The worlds of an elastic
job are its gangs: the platform announces each world, and the process joins it.
"""

from __future__ import annotations

import atexit
import sys
from typing import Callable, Iterable, List, Optional, Sequence, Tuple, Union

from trainmaster_train import elastic
from trainmaster_train.horovod.controller.messages import GLOBAL_SET
from trainmaster_train.horovod.elastic import register_rejoin
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.gang import ProcessGang
from trainmaster_train.horovod.settings import HorovodSettings, read_settings

# All peers are there when the first one connects: one that is lost in between is not waited for as long as at a start.
RENDEZVOUS_S = 30.0


class ElasticMembership:
    """Takes this process from world to world. ``leave``: releases what the framework holds of the old world."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._is_following = False

    def own(self) -> Optional[elastic.ElasticWorld]:
        """The current world if this process goes from world to world; else ``None``."""
        return elastic.own_world() if self._is_following else None

    def wait_to_join(self) -> None:
        """Wait for the first world if this process joins a running gang; does nothing in any other process.

        A process is started before it has a rank only if the others go from world to world by themselves.
        """
        if elastic.is_elastic() and not self._is_following and elastic.newest_number() == 0:
            elastic.enter(elastic.first_world())
            self._follow()

    def follow(self) -> None:
        """From now on go from world to world in this process, instead of being restarted for each world."""
        if elastic.is_elastic() and not self._is_following:
            elastic.first_world()  # tells the runtime that this process stays; the first commit joins a newer world
            self._follow()

    def rejoin(self) -> bool:
        """Wait for the next world and enter it; ``False``: none came."""
        self._leave()
        try:
            elastic.enter(elastic.next_world(elastic.own_world().number))
        except elastic.WorldError as none:
            print(f"[trainmaster] {none}", file=sys.stderr, flush=True)
            return False
        return True

    def _follow(self) -> None:
        self._is_following = True
        register_rejoin(self.rejoin, lambda: elastic.newest_number() > elastic.own_world().number)


class ProcessSet:
    """A subset of the ranks that runs operations of its own: ``process_set=`` of each operation."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: Optional[List[int]] = sorted({int(rank) for rank in ranks})
        self.process_set_id: Optional[int] = None
        self._session: Optional[HorovodSession] = None

    def included(self) -> bool:
        """Whether this process is a member."""
        own_rank, members = self._rank_and_members()
        return own_rank in members

    def rank(self) -> int:
        """This process's rank in the set; -1 if it is not a member."""
        own_rank, members = self._rank_and_members()
        return members.index(own_rank) if own_rank in members else -1

    def size(self) -> int:
        return len(self._rank_and_members()[1])

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def bind(self, session: Optional[HorovodSession], number: Optional[int]) -> None:
        """Attach the set to a session, with its number there; ``None`` detaches it."""
        self._session, self.process_set_id = session, number

    def _rank_and_members(self) -> Tuple[int, Tuple[int, ...]]:
        """This process's rank among all, and the ranks of the set."""
        number = set_number(self)
        assert self._session is not None  # noqa: S101 (a set with a number is bound)
        gang = self._session.gang()
        return gang.ranks.rank, gang.engine.members(number)


class HorovodSession:
    """A process's membership in a gang, for one framework's ``hvd``.

    Args:
        form_gang: forms the gang of the world that the environment describes.
        membership: takes the process of an elastic job to the next world.
    """

    def __init__(self, form_gang: Callable[[HorovodSettings], ProcessGang], membership: ElasticMembership) -> None:
        self._form_gang = form_gang
        self._membership = membership
        self._gang: Optional[ProcessGang] = None
        self._sets: List[ProcessSet] = []
        self.global_process_set = ProcessSet([])
        self.global_process_set.ranks = None  # all ranks, known after init
        self.global_process_set.bind(self, GLOBAL_SET)
        atexit.register(self.shutdown)

    def init(
        self, comm: Optional[Sequence[int]] = None, process_sets: Union[str, Sequence[ProcessSet], None] = None
    ) -> None:
        """Form the gang with the other processes. Does nothing the second time.

        The ranks come from ``HOROVOD_RANK``/``HOROVOD_SIZE`` or ``RANK``/``WORLD_SIZE``, which the platform and
        torchrun set. Without them the process is alone. With torch the ranks meet at ``MASTER_ADDR`` and
        ``MASTER_PORT``, or use torch.distributed's world if that is initialized already; with other frameworks they
        meet at the key-value store ``HOROVOD_GLOO_RENDEZVOUS_ADDR`` and ``HOROVOD_GLOO_RENDEZVOUS_PORT``.

        Args:
            comm: as in Horovod; only the list of all ranks is supported.
            process_sets: sets to add right away; ``"dynamic"`` is accepted, because sets can always be added.

        Raises:
            HorovodInternalError: some processes did not come in time; names them.
            ValueError: a variable has an invalid value, or a required one is missing.
        """
        if self._gang is not None and self._gang.engine.failure is None:
            return
        self.shutdown()
        self._membership.wait_to_join()
        gang = self._gang = self._form_newest_gang(read_settings())
        if comm is not None and sorted(comm) not in ([], list(range(gang.ranks.size))):
            self.shutdown()
            raise ValueError("hvd.init(comm=…) takes all ranks or none here; for some of them use process sets.")
        if process_sets is not None and not isinstance(process_sets, str):
            for process_set in process_sets:
                self.add_process_set(process_set)

    def shutdown(self) -> None:
        """Leave the gang: operations that still need this process fail at once. ``init`` may be called again."""
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
        return self.gang().ranks.rank

    def size(self) -> int:
        return self.gang().ranks.size

    def local_rank(self) -> int:
        """The rank among the processes of this host (this replica): the index of the process's GPU."""
        return self.gang().ranks.local_rank

    def local_size(self) -> int:
        return self.gang().ranks.local_size

    def cross_rank(self) -> int:
        """This host's index among those that have a process of this local rank."""
        return self.gang().ranks.cross_rank

    def cross_size(self) -> int:
        return self.gang().ranks.cross_size

    def is_homogeneous(self) -> bool:
        """Whether all hosts have the same number of processes."""
        return self.gang().ranks.is_homogeneous

    def barrier(self, process_set: Optional[ProcessSet] = None) -> None:
        """Wait until all ranks (of the set) have called it."""
        self.gang().barrier(GLOBAL_SET if process_set is None else set_number(process_set))

    def add_process_set(self, process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
        """Register a process set. All ranks call it, members or not, in the same order."""
        added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        if added.process_set_id is not None:
            raise ValueError(f"{added} was added already.")
        added.bind(self, self.gang().add_set(added.ranks or []))
        self._sets.append(added)
        return added

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Remove a set. All ranks call it, members or not; it returns when all have. Returns ``False`` at once for the
        set of all ranks, and for one that is not registered.
        """
        number = process_set.process_set_id
        if number is None or number == GLOBAL_SET:
            return False
        self.gang().remove_set(number)
        process_set.bind(None, None)
        self._sets.remove(process_set)
        return True

    def _form_newest_gang(self, settings: HorovodSettings) -> ProcessGang:
        """Form a gang; in an elastic job, a world that breaks during the rendezvous is followed by the next one."""
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
