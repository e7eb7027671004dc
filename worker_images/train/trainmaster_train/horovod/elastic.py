"""Elastic training, independent of the framework: a state in memory, and a function that is run again.

The launcher (the platform) changes the world: it ends the old gang and tells where the next one meets. It plugs in by
:func:`register_rejoin`; without that, a broken gang ends the process, and the platform restarts all processes from the
last checkpoint.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from typing import Any, Callable, List, Optional

from trainmaster_train.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt

# Waits until the next gang can meet, and sets its environment; False: there is none for this process.
Rejoin = Callable[[], bool]
# Whether the gang is about to change.
Changing = Callable[[], bool]

_rejoin: Optional[Rejoin] = None
_is_changing: Changing = lambda: False  # noqa: E731 (a default, not a function of its own)


def register_rejoin(rejoin: Optional[Rejoin], is_changing: Optional[Changing] = None) -> None:
    """Register how a process joins the next gang, and how it learns that the gang is about to change.

    Args:
        rejoin: called after the old gang was left, before ``init``; sets the ranks and the address in the environment.
        is_changing: called at each commit; ``True`` on any rank makes all ranks rejoin.
    """
    global _rejoin, _is_changing  # noqa: PLW0603 (one launcher for each process)
    _rejoin = rejoin
    _is_changing = is_changing or (lambda: False)


class State(ABC):
    """The state from which training continues: saved in memory by :meth:`commit`, restored after a failure, made equal
    on all ranks by :meth:`sync`.

    Args:
        any_rank: the framework's logical "or" over all ranks.
    """

    def __init__(self, any_rank: Callable[[bool], bool]) -> None:
        self._any_rank = any_rank
        self._commits = 0
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: List[Callable[[], None]]) -> None:
        """Register callbacks for each change of the gang, before training continues: to scale a learning rate, say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state in memory, and let the gang change if a change is due.

        Raises:
            HostsUpdatedInterrupt: the gang changes; :func:`run_elastic` catches it.
        """
        self.commit_only()
        self.check_host_updates()

    def commit_only(self) -> None:
        """Commit without checking for a change of the gang."""
        self.save()
        self._commits += 1

    def check_host_updates(self) -> None:
        """Raise :class:`HostsUpdatedInterrupt` on all ranks if any of them knows of a change."""
        if _rejoin is not None and self._any_rank(_is_changing()):
            raise HostsUpdatedInterrupt

    @abstractmethod
    def save(self) -> None:
        """Save the state in memory."""

    @abstractmethod
    def restore(self) -> None:
        """Go back to the state that was saved last."""

    @abstractmethod
    def sync(self) -> None:
        """Take the state of the newest commit that any rank has; collective."""

    def reset(self) -> None:  # noqa: B027 (nothing is the default)
        """Rebuild what depends on the gang; does nothing by default."""


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
        """All ranks take the values of the rank with the newest commit; before the first commit, those of rank 0."""
        self.sync_values(self.newest_rank())
        self.restore()

    def newest_rank(self) -> int:
        """The rank with the newest commit: a rank that died during a step may have left others one commit behind."""
        counts = self._gather_objects(self._commits)
        self._commits = max(counts)
        return int(counts.index(self._commits))

    def sync_values(self, source: int) -> None:
        """Save the plain values of rank ``source``."""
        self._values = self._bcast_object({name: getattr(self, name) for name in self._values}, source)


def run_elastic(
    function: Callable[..., Any],
    init: Callable[[], None],
    shutdown: Callable[[], None],
    barrier: Callable[[], None],
    follow: Callable[[], None],
) -> Callable[..., Any]:
    """``function(state, …)``, called again after each change of the gang and each loss of a member until it returns.

    A loss takes the state back to the last commit; a change keeps it. Without :func:`register_rejoin` the first
    failure is raised. Otherwise a rank that is done waits for all: if one is lost in its last step, all repeat that
    step.

    Args:
        follow: lets this process go from world to world, instead of being restarted for each.
    """

    @functools.wraps(function)
    def run(state: State, *args: Any, **kwargs: Any) -> Any:
        follow()
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
                        return done[0]  # no other rank is left
                    raise
                state.restore()
                must_sync = True
            except HostsUpdatedInterrupt as change:
                # Commit, so that a rank lost during the change costs no steps.
                state.commit_only()
                shutdown()
                if _rejoin is None or not _rejoin():
                    raise
                must_sync = not change.skip_sync
            init()
            is_new = True

    return run
