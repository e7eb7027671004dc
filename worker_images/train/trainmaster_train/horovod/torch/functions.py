"""Parameters, optimizer states and Python objects from one rank to all."""

from __future__ import annotations

import pickle
from typing import Any, Iterable, List, Mapping, Optional, Tuple, Union, cast

import torch

from trainmaster_train.horovod.session import ProcessSet
from trainmaster_train.horovod.torch.basics import global_process_set, rank
from trainmaster_train.horovod.torch.ops import allgather, broadcast_, broadcast_async_, synchronize

Named = Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]


def broadcast_parameters(params: Named, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Broadcast the tensors of ``params`` (a ``state_dict()`` or ``named_parameters()``) from ``root_rank``, in place.

    Values that are not tensors stay unchanged; use :func:`broadcast_object` for them.

    Raises:
        ValueError: ``params`` is neither; or names a tensor twice.
    """
    if isinstance(params, Mapping):
        mapping = cast(Mapping[str, Any], params)  # noqa: TC006 (Python 3.8 reads it as well unquoted)
        named: List[Tuple[str, Any]] = [(name, mapping[name]) for name in sorted(mapping)]
    elif isinstance(params, (list, tuple)) or hasattr(params, "__next__"):
        named = [pair if isinstance(pair, tuple) else ("", pair) for pair in params]
    else:
        raise ValueError(
            f"broadcast_parameters takes a state_dict() or named_parameters(), not {type(params).__name__}."
        )
    handles = [
        broadcast_async_(
            value.data if isinstance(value, torch.nn.Parameter) else value, root_rank, name or None, process_set
        )
        for name, value in named
        if isinstance(value, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Optional[torch.nn.Module] = None,  # noqa: ARG001 (Horovod's signature)
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast the state and options of ``optimizer`` from ``root_rank``, even if only that rank has made steps.

    Raises:
        ValueError: the optimizer's state cannot be sent (LBFGS).
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(  # noqa: TRY004 (Horovod raises this one)
            "broadcast_optimizer_state cannot send the state of LBFGS, as in Horovod."
        )
    is_root = rank() == root_rank
    state = optimizer.state_dict() if is_root else None
    tensors: List[torch.Tensor] = []
    plan = broadcast_object(_extract_tensors(state, tensors) if is_root else None, root_rank, process_set=process_set)
    if not is_root:
        tensors = []
        state = _insert_tensors(plan, tensors)
    for tensor in tensors:
        broadcast_(tensor, root_rank, process_set=process_set)
    if not is_root:
        assert state is not None  # noqa: S101 (received from the root)
        optimizer.load_state_dict(state)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """``obj`` of ``root_rank``, on every rank. It must be picklable."""
    if rank() == root_rank:
        data = torch.frombuffer(bytearray(_pickled(obj)), dtype=torch.uint8)
        length = torch.tensor([data.numel()])
        broadcast_(length, root_rank, _suffixed(name, "length"), process_set)
        broadcast_(data, root_rank, _suffixed(name, "data"), process_set)
        return obj
    length = torch.zeros(1, dtype=torch.int64)
    broadcast_(length, root_rank, _suffixed(name, "length"), process_set)
    data = torch.empty(int(length.item()), dtype=torch.uint8)
    broadcast_(data, root_rank, _suffixed(name, "data"), process_set)
    return _unpickled(data)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in rank order."""
    data = torch.frombuffer(bytearray(_pickled(obj)), dtype=torch.uint8)
    lengths = allgather(torch.tensor([data.numel()]), _suffixed(name, "lengths"), process_set)
    gathered = allgather(data, _suffixed(name, "data"), process_set)
    return [_unpickled(part) for part in gathered.split(lengths.tolist())]


def _suffixed(name: Optional[str], suffix: str) -> Optional[str]:
    return f"{name}.{suffix}" if name else None


def _pickled(obj: Any) -> bytes:
    return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickled(data: torch.Tensor) -> Any:
    # It comes from a rank of the same job, which runs the same user's code.
    return pickle.loads(data.cpu().numpy().tobytes())  # noqa: S301


class _Tensor:
    """Placeholder of a tensor that is sent separately."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def _extract_tensors(value: Any, tensors: List[torch.Tensor]) -> Any:
    """``value`` with placeholders for its tensors, which are appended to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().cpu())
        return _Tensor(value)
    if isinstance(value, dict):
        return {key: _extract_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_extract_tensors(item, tensors) for item in value)
    return value


def _insert_tensors(value: Any, tensors: List[torch.Tensor]) -> Any:
    """The inverse: new tensors for the placeholders, in the same order."""
    if isinstance(value, _Tensor):
        # On the CPU: load_state_dict takes each to its parameter's device.
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _insert_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_insert_tensors(item, tensors) for item in value)
    return value
