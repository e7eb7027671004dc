"""The loop around a training function, world after world until it returns; the state from which it continues when its
world changes; and the watch for smaller worlds.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
import traceback
from typing import Any, Callable, Dict, Optional, TypeVar

from trainmaster_train.elastic import worlds
from trainmaster_train.elastic.group import Group, WorldChanged, is_peer_loss
from trainmaster_train.elastic.worlds import ElasticWorld, WorldError, is_elastic, newest_number, newest_size

_POLL_S = 0.5
# Time to notice the loss otherwise, as most processes do.
_PATIENCE_S = 3.0

ResultT = TypeVar("ResultT")

_world = ElasticWorld()


class State:
    """Named parts of a training: objects with ``state_dict`` and ``load_state_dict``, and plain values.

    Each is an attribute (``state.model``, ``state.step``). :meth:`commit` copies them in memory; when a peer is lost,
    all ranks go back to the newest commit of any of them, and a new rank receives it from there.
    """

    def __init__(self, **parts: Any) -> None:
        self._names = tuple(parts)
        self._saved: Dict[str, Any] = {}
        self._commits = 0
        self._world = 0
        for name, part in parts.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"{name}: choose another name, this one is reserved")
            setattr(self, name, part)

    def commit(self) -> None:
        """Copy all parts, and check whether the world has changed. Every rank calls it after the same step.

        Raises:
            WorldChanged: do not catch it; ``run`` continues in the new world from here.
        """
        self._save()
        if self._has_changed():
            raise WorldChanged

    def check(self) -> None:
        """As :meth:`commit` without a copy, for steps between commits. Every rank calls it after the same step.

        Raises:
            WorldChanged: as :meth:`commit`; only then the state is copied.
        """
        if self._has_changed():
            self._save()
            raise WorldChanged

    def _has_changed(self) -> bool:
        return is_elastic() and _newest_known(newest_number()) > self._world

    def restore(self) -> None:
        """Go back to the last commit, if there is one."""
        for name, saved in self._saved.items():
            part = getattr(self, name)
            if _is_stateful(part):
                part.load_state_dict(copy.deepcopy(saved))
            else:
                setattr(self, name, copy.deepcopy(saved))

    def sync(self, world_number: int) -> None:
        """Give every rank the newest commit of all. Every rank calls it first in a world."""
        import torch.distributed as dist

        self._world = world_number
        if not self._commits:
            self._save()
            self._commits = 0  # the initial state, before any step: a rank that has trained has more commits
        counts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(counts, self._commits)
        newest = max(counts)
        if min(counts) == newest and newest > 0:
            return
        source = counts.index(newest)
        box = [(self._saved, newest) if dist.get_rank() == source else None]
        dist.broadcast_object_list(box, src=source)
        if dist.get_rank() != source and box[0] is not None:
            self._saved, self._commits = box[0]
            self.restore()

    def _save(self) -> None:
        saved = {}
        for name in self._names:
            part = getattr(self, name)
            saved[name] = copy.deepcopy(part.state_dict() if _is_stateful(part) else part)
        # Atomic: an interrupt must not leave a mixture of two commits.
        self._saved, self._commits = saved, self._commits + 1


def _is_stateful(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _newest_known(number: int) -> int:
    """The newest world number that any rank knows, so that all leave after the same step."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    newest = torch.tensor([number], dtype=torch.int64, device=device)
    dist.all_reduce(newest, op=dist.ReduceOp.MAX)
    return int(newest.item())


class WorldWatch:
    """``with Watch(group, world):`` while this process trains in ``world``.

    A peer that is killed closes its connections, and the others notice at once. A peer whose machine vanished does not:
    they would wait until the collective's time-out. But the platform's node grace period ends long before, and its next
    world is smaller. If this process is still in the old world a few seconds later, its connections are cut: the
    pending or the next collective fails as with any lost peer. A world that is not smaller waits for the next commit.
    """

    def __init__(self, group: Group, world: ElasticWorld, patience_s: float = _PATIENCE_S) -> None:
        self._group = group
        self._world = world
        self._patience_s = patience_s
        self._left = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> None:
        if is_elastic() and self._world.size > 1:
            self._thread = threading.Thread(target=self._cut_when_smaller, name="trainmaster world", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _cut_when_smaller(self) -> None:
        while not self._left.wait(_POLL_S):
            if newest_number() > self._world.number and newest_size() < self._world.size:
                if not self._left.wait(self._patience_s):
                    self._group.cut()
                return


def world() -> ElasticWorld:
    """The current world of this process."""
    return _world


def run(
    function: Optional[Callable[..., ResultT]] = None, *, backend: Optional[str] = None, timeout_s: float = 300.0
) -> Any:
    """Make ``function(state, …)`` a training that continues when a worker is lost or joins.

    The function is called again in every world, after the process group was joined and the state synchronized to the
    newest commit. It creates its DistributedDataParallel itself, and begins at the step in ``state``. In a gang that is
    not elastic, and outside of the platform, it is called once.

    Args:
        backend: of ``init_process_group``; default: NCCL with a GPU, else gloo.
        timeout_s: of a collective.
    """
    if function is None:
        return functools.partial(run, backend=backend, timeout_s=timeout_s)

    @functools.wraps(function)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        group = Group(backend, timeout_s)
        call = functools.partial(function, state, *args, **kwargs)
        return _run(group, state, call)

    return wrapper


def _run(group: Group, state: State, call: Callable[[], ResultT]) -> ResultT:
    global _world  # noqa: PLW0603 (a process is in one world)
    if worlds.is_elastic() and worlds.newest_number() == 0:
        # The others are still training: import now what DistributedDataParallel would import while they wait.
        import torch._dynamo  # noqa: F401
    _world = worlds.first_world()
    done: list[ResultT] = []
    before = 0
    while True:
        failure = _in_world(group, state, call, done, before)
        before = _world.size
        if failure is None:
            return done[0]
        try:
            _world = worlds.next_world(_world.number, worlds.PATIENCE_S)
        except WorldError as none:
            if done:
                return done[0]  # the work is done, and no other process is left
            if isinstance(failure, WorldChanged):
                raise
            raise failure from none


def _in_world(
    group: Group, state: State, call: Callable[[], ResultT], done: list[ResultT], before: int
) -> Optional[BaseException]:
    """Train in the current world, after one of ``before`` processes; returns why it ended, or ``None`` if all are
    done.
    """
    try:
        worlds.enter(_world)
        group.join(_world)
        if worlds.is_elastic():
            print(_transition_message(_world, before), file=sys.stderr, flush=True)
        with WorldWatch(group, _world):
            state.sync(_world.number)
            done[:] = [call()]
            _wait_for_all()
        return None
    except WorldChanged as changed:
        return _without_references(changed)
    except RuntimeError as error:
        if not worlds.is_elastic() or not is_peer_loss(error):
            raise
        stripped = _without_references(error)
        state.restore()
        return stripped
    finally:
        group.leave()


def _transition_message(now: ElasticWorld, before: int) -> str:
    rank = f"(world {now.number}, rank {now.rank})"
    processes = f"{now.size} {'process' if now.size == 1 else 'processes'}"
    if not before:
        return f"[trainmaster] training {'joined' if now.number > 1 else 'begins'} with {processes} {rank}"
    return f"[trainmaster] training goes on with {processes} instead of {before} {rank}"


def _wait_for_all() -> None:
    """Wait for all at the end: if a rank loses a peer in its last step, all repeat that step."""
    import torch.distributed as dist

    dist.barrier()


def _without_references(error: BaseException) -> BaseException:
    """``error`` without references to frames: a DistributedDataParallel that outlives its group may hang when freed."""
    traceback.clear_frames(error.__traceback__)
    stripped = error.with_traceback(None)
    stripped.__context__ = stripped.__cause__ = None
    return stripped
