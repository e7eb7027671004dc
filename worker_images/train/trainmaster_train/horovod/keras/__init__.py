"""Horovod's API for Keras: ``import trainmaster_train.horovod.keras as hvd``, for models of the package ``keras``."""

from __future__ import annotations

import keras  # pyright: ignore[reportMissingImports] (the user's)

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

callbacks = callbacks_of(keras)

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
