"""Horovod's API for ``tf.keras``: ``import trainmaster_train.horovod.tensorflow.keras as hvd``."""

from __future__ import annotations

import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.tensorflow import (
    Average,
    Compression,
    DistributedOptimizer,
    HorovodInternalError,
    Sum,
    allgather,
    allreduce,
    broadcast,
    broadcast_object,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from trainmaster_train.horovod.tensorflow.callbacks import callbacks_of

callbacks = callbacks_of(tf.keras)

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "callbacks",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
