"""``hvd.init()`` for TensorFlow, and what it knows afterwards."""

from __future__ import annotations

import atexit
from typing import Optional

from trainmaster_train.horovod.arrays import join_gang
from trainmaster_train.horovod.gang import Gang

_gang: Optional[Gang] = None


def init() -> None:
    """Meet the other processes. Does nothing the second time.

    Raises:
        HorovodInternalError: not all processes came in time; says which are missing.
        ValueError: a variable holds what it cannot hold.
    """
    global _gang  # noqa: PLW0603 (one gang for each process, as in Horovod)
    if _gang is not None and _gang.engine.failure is None:
        return
    shutdown()
    _gang = join_gang()


def shutdown() -> None:
    """Leave the gang: what others still want of this process fails at once. ``init`` may be called again."""
    global _gang
    leaving, _gang = _gang, None
    if leaving is not None:
        leaving.close()


atexit.register(shutdown)


def is_initialized() -> bool:
    return _gang is not None


def gang() -> Gang:
    """Raises ``ValueError`` before ``init``, as Horovod does."""
    if _gang is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _gang


def rank() -> int:
    return gang().place.rank


def size() -> int:
    return gang().place.size


def local_rank() -> int:
    """Among the processes of this host (of this replica): the number of the process's GPU."""
    return gang().place.local_rank


def local_size() -> int:
    return gang().place.local_size


def cross_rank() -> int:
    """This host's number among those that have a process of this local rank."""
    return gang().place.cross_rank


def cross_size() -> int:
    return gang().place.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have as many processes."""
    return gang().place.is_homogeneous


def barrier() -> None:
    """Wait until all ranks are here."""
    gang().barrier()


def join() -> int:
    """Wait until all ranks joined, and give zeros to their allreduces meanwhile. Returns the rank that was last."""
    return gang().join()
