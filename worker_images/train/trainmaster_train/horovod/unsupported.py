"""Parts of Horovod's API that are missing here, each with what to use instead; and transports that are not built in."""

from __future__ import annotations

from typing import Callable, Dict, NoReturn


def mpi_built() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_threads_supported() -> bool:
    return False


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


EVERYWHERE = {
    "start_timeline": "profile with torch.profiler or tf.profiler, or read the job's step metrics",
    "stop_timeline": "profile with torch.profiler or tf.profiler, or read the job's step metrics",
}
TORCH = {**EVERYWHERE, "SyncBatchNorm": "use torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"}
_NO_PARTIAL = "DistributedOptimizer and DistributedGradientTape reduce the gradients of all variables"
_TENSORFLOW_1 = "it is TensorFlow 1's; call hvd.broadcast_variables(variables, root_rank) once all are created"
_NO_RANK_OP = "call hvd.rank() or hvd.size() in Python, or inside of tf.py_function where a gang may change"
TENSORFLOW = {
    **EVERYWHERE,
    "BroadcastGlobalVariablesHook": _TENSORFLOW_1,
    "broadcast_global_variables": _TENSORFLOW_1,
    "broadcast_object_fn": "it is TensorFlow 1's; call hvd.broadcast_object(obj, root_rank)",
    "broadcast_": "call hvd.broadcast_variables(variables, root_rank)",
    "PartialDistributedGradientTape": _NO_PARTIAL,
    "PartialDistributedOptimizer": _NO_PARTIAL,
    "SyncBatchNormalization": "use Keras' BatchNormalization; its statistics are each rank's own",
    "rank_op": _NO_RANK_OP,
    "local_rank_op": _NO_RANK_OP,
    "size_op": _NO_RANK_OP,
    "local_size_op": _NO_RANK_OP,
    "process_set_included_op": "call process_set.included() in Python",
}


def unsupported_attribute(module: str, names: Dict[str, str]) -> Callable[[str], NoReturn]:
    """A module's ``__getattr__``, which raises ``AttributeError``."""

    def attribute(name: str) -> NoReturn:
        if name in names:
            raise AttributeError(f"hvd.{name} is not supported: {names[name]}.")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return attribute
