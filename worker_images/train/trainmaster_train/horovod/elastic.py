"""What elastic training is for every framework: a state that is kept in memory, and a function that is run again.

The world changes outside of a script: whoever runs it (the platform) ends the old gang and says where the new one
meets. :func:`meet_anew` is the place where it plugs in; without anything there, a broken gang ends the process, and
the platform starts all of them again, from the last checkpoint.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from typing import Any, Callable, List, Optional

from trainmaster_train.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt

# Waits until the process may meet the others again, with the environment of the new gang set; False: it may not.
Rejoin = Callable[[], bool]
# Whether the gang is about to change.
Changing = Callable[[], bool]

_rejoin: Optional[Rejoin] = None
_is_changing: Changing = lambda: False  # noqa: E731 (a default, not a function of its own)


def register_rejoin(rejoin: Optional[Rejoin], is_changing: Optional[Changing] = None) -> None:
    """Say how a process comes into the next gang, and how it learns that there is going to be one.

    Args:
        rejoin: called after the old gang was left, before ``init``; sets the ranks and the address in the environment.
        is_changing: asked at each commit; ``True`` makes all ranks meet anew.
    """
    global _rejoin, _is_changing  # noqa: PLW0603 (one launcher for each process)
    _rejoin = rejoin
    _is_changing = is_changing or (lambda: False)


class State(ABC):
    """What training needs to go on: saved in memory by :meth:`commit`, restored after a failure, made the same on all
    ranks by :meth:`sync`.

    Args:
        any_rank: whether it is true on any rank; the framework's.
    """

    def __init__(self, any_rank: Callable[[bool], bool]) -> None:
        self._any_rank = any_rank
        self._commits = 0
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: List[Callable[[], None]]) -> None:
        """Called after each change of the gang, before training goes on: to scale a learning rate, say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep the state as it is now, and let the gang change if it is to.

        Raises:
            HostsUpdatedInterrupt: it changes; for :func:`run_elastic`.
        """
        self.commit_only()
        self.check_host_updates()

    def commit_only(self) -> None:
        """A commit without a look at the gang."""
        self.save()
        self._commits += 1

    def check_host_updates(self) -> None:
        """Raises :class:`HostsUpdatedInterrupt` on all ranks if any of them knows of a change."""
        if _rejoin is not None and self._any_rank(_is_changing()):
            raise HostsUpdatedInterrupt

    @abstractmethod
    def save(self) -> None:
        """Keep the state as it is now, in memory."""

    @abstractmethod
    def restore(self) -> None:
        """Go back to what was kept last."""

    @abstractmethod
    def sync(self) -> None:
        """Take the state of the newest commit that any rank has; collective."""

    def reset(self) -> None:  # noqa: B027 (nothing is the default)
        """Whatever must be made anew for another gang; nothing by default."""


class ObjectState(State):
    """A state of plain values, which are its attributes: ``ObjectState(…, epoch=0, batch=0)``."""

    def __init__(
        self,
        any_rank: Callable[[bool], bool],
        bcast_object: Callable[[Any, int], Any],
        gather_objects: Callable[[Any], List[Any]],
        **values: Any,
    ) -> None:
        super().__init__(any_rank)
        self._bcast_object = bcast_object
        self._gather_objects = gather_objects
        self._values = dict(values)
        for name, value in values.items():
            setattr(self, name, value)

    def save(self) -> None:
        self._values = copy.deepcopy({name: getattr(self, name) for name in self._values})

    def restore(self) -> None:
        for name, value in copy.deepcopy(self._values).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """All take those of the newest commit, as they are there now; rank 0's before the first."""
        self.sync_values(self.newest_rank())
        self.restore()

    def newest_rank(self) -> int:
        """Who has the newest commit: one that died in a step may have left some of the others a commit behind."""
        counts = self._gather_objects(self._commits)
        self._commits = max(counts)
        return int(counts.index(self._commits))

    def sync_values(self, source: int) -> None:
        """Keep the plain values of rank ``source``."""
        self._values = self._bcast_object({name: getattr(self, name) for name in self._values}, source)


def run_elastic(
    function: Callable[..., Any],
    init: Callable[[], None],
    shutdown: Callable[[], None],
    barrier: Callable[[], None],
) -> Callable[..., Any]:
    """``function(state, …)`` run until it returns, over changes of the gang and deaths of its members.

    A death takes the state back to the last commit; a change keeps it. Where nothing says how to meet anew
    (:func:`meet_anew`), the first failure is raised. Else who is done waits for all: if one is lost in its last step,
    all do that step again.
    """

    @functools.wraps(function)
    def run(state: State, *args: Any, **kwargs: Any) -> Any:
        must_sync, is_new = True, False
        done: List[Any] = []
        while True:
            try:
                if is_new:
                    state.on_reset()
                if must_sync:
                    state.sync()
                done[:] = [function(state, *args, **kwargs)]
                if _rejoin is not None:
                    barrier()
                return done[0]
            except HorovodInternalError:
                shutdown()
                if _rejoin is None or not _rejoin():
                    if done:
                        return done[0]  # nobody is left to agree with
                    raise
                state.restore()
                must_sync = True
            except HostsUpdatedInterrupt as change:
                # Nothing is to be lost of what was done since the last commit, if another one is lost on the way.
                state.commit_only()
                shutdown()
                if _rejoin is None or not _rejoin():
                    raise
                must_sync = not change.skip_sync
            init()
            is_new = True

    return run
