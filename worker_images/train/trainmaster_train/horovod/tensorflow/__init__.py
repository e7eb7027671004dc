"""Horovod's API for TensorFlow 2: ``import trainmaster_train.horovod.tensorflow as hvd``."""

from __future__ import annotations

from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.tensorflow.ops import (
    Average,
    Compression,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    broadcast,
    broadcast_object,
    broadcast_variables,
    grouped_allreduce,
)
from trainmaster_train.horovod.tensorflow.session import (
    barrier,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from trainmaster_train.horovod.tensorflow.training import DistributedGradientTape, DistributedOptimizer

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
