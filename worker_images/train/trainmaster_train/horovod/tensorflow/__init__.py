"""Horovod's API for TensorFlow 2: ``import trainmaster_train.horovod.tensorflow as hvd``."""

from __future__ import annotations

from trainmaster_train.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from trainmaster_train.horovod.reduction import Adasum, Average, Max, Min, Product, Sum
from trainmaster_train.horovod.session import ProcessSet
from trainmaster_train.horovod.tensorflow import elastic
from trainmaster_train.horovod.tensorflow.functions import allgather_object, broadcast_object, broadcast_variables
from trainmaster_train.horovod.tensorflow.ops import (
    Compression,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from trainmaster_train.horovod.tensorflow.session import (
    add_process_set,
    barrier,
    cross_rank,
    cross_size,
    cuda_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
)
from trainmaster_train.horovod.tensorflow.training import DistributedGradientTape, DistributedOptimizer
from trainmaster_train.horovod.unsupported import (
    TENSORFLOW,
    ccl_built,
    ddl_built,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    unsupported_attribute,
)

__getattr__ = unsupported_attribute(__name__, TENSORFLOW)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
]
