"""``hvd.init()`` for TensorFlow: ranks, process sets, available transports."""

from __future__ import annotations

import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.arrays import join_gang
from trainmaster_train.horovod.gang import ProcessGang
from trainmaster_train.horovod.session import ElasticMembership, HorovodSession
from trainmaster_train.horovod.settings import HorovodSettings


def gloo_built() -> bool:
    return True


def gloo_enabled() -> bool:
    return True


def nccl_built() -> int:
    """0: tensors pass through the host's memory."""
    return 0


def cuda_built() -> bool:
    return bool(tf.test.is_built_with_cuda())


def rocm_built() -> bool:
    return bool(tf.test.is_built_with_rocm())


# No resource of an old gang outlives it here.
membership = ElasticMembership(lambda: None)


def _form_gang(settings: HorovodSettings) -> ProcessGang:
    return join_gang(settings, membership.own())


_session = HorovodSession(_form_gang, membership)
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
    """Wait until all ranks joined; meanwhile contribute zeros to allreduces. Returns the rank that joined last."""
    return gang().join()
