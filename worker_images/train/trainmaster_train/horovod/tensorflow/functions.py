"""Variables and whole objects from one rank to all."""

from __future__ import annotations

import pickle
from typing import Any, List, Optional, Sequence

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.controller.messages import ALLGATHER, BROADCAST
from trainmaster_train.horovod.session import ProcessSet, set_number
from trainmaster_train.horovod.tensorflow.ops import run, through_numpy
from trainmaster_train.horovod.tensorflow.session import gang, global_process_set, rank


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Broadcast ``variables`` from ``root_rank``, eagerly or when the graph runs. Use one order on all ranks."""
    number = set_number(process_set)
    gang().check_root(root_rank, number)
    variable_list = list(variables)
    label = gang().next_name("variables", number)
    names = [f"{label}.{i}" for i in range(len(variable_list))]
    values = through_numpy(
        lambda *arrays: run(arrays, names, BROADCAST, root=root_rank, process_set=number),
        [tf.convert_to_tensor(variable) for variable in variable_list],
        [tf.as_dtype(variable.dtype) for variable in variable_list],
    )
    for variable, value in zip(variable_list, values):
        value.set_shape(variable.shape)
        variable.assign(value)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """``obj`` of ``root_rank``, on every rank. It must be picklable."""
    number = set_number(process_set)
    gang().check_root(root_rank, number)
    is_root = rank() == root_rank
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if is_root else np.empty(0, np.uint8)
    label = name or gang().next_name("object", number)
    (length,) = run([np.array([data.size])], [f"{label}.length"], BROADCAST, root=root_rank, process_set=number)
    if not is_root:
        data = np.empty(int(length[0]), np.uint8)
    (data,) = run([data], [f"{label}.data"], BROADCAST, root=root_rank, process_set=number)
    return _unpickled(data)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in rank order."""
    number = set_number(process_set)
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    label = name or gang().next_name("objects", number)
    (lengths,) = run([np.array([data.size])], [f"{label}.lengths"], ALLGATHER, process_set=number)
    (gathered,) = run([data], [f"{label}.data"], ALLGATHER, process_set=number)
    return [_unpickled(part) for part in np.split(gathered, np.cumsum(lengths)[:-1])]


def variables_of(optimizer: Any) -> List[Any]:
    """The optimizer's variables: a method in older Keras, a list in newer ones."""
    variables: Any = optimizer.variables
    if callable(variables):
        variables = variables()
    return list(variables)  # pyright: ignore[reportArgumentType]


def _unpickled(data: Any) -> Any:
    # It comes from a rank of the same job, which runs the same user's code.
    return pickle.loads(data.tobytes())  # noqa: S301
