"""``hvd.init()`` for TensorFlow, and what it knows afterwards."""

from __future__ import annotations

from trainmaster_train.horovod.arrays import join_gang
from trainmaster_train.horovod.gang import Gang
from trainmaster_train.horovod.session import Session
from trainmaster_train.horovod.settings import Settings
from trainmaster_train.horovod.worlds import Worlds

# Nothing of an old gang outlives it here.
worlds = Worlds(lambda: None)


def _meet(settings: Settings) -> Gang:
    return join_gang(settings, worlds.own())


_session = Session(_meet, worlds)
init = _session.init
shutdown = _session.shutdown
is_initialized = _session.is_initialized
gang = _session.gang
rank = _session.rank
size = _session.size
local_rank = _session.local_rank
local_size = _session.local_size
cross_rank = _session.cross_rank
cross_size = _session.cross_size
is_homogeneous = _session.is_homogeneous
barrier = _session.barrier
add_process_set = _session.add_process_set
remove_process_set = _session.remove_process_set
global_process_set = _session.global_process_set


def join() -> int:
    """Wait until all ranks joined, and give zeros to their allreduces meanwhile. Returns the rank that was last."""
    return gang().join()
