"""Copies of a state in memory, which a thread writes while the training goes on."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from trainmaster_train.checkpoint.errors import CheckpointError


@dataclass
class Snapshot:
    """``state``: the copy. ``later``: (target, source, source's version, place) of what :meth:`finish` still copies."""

    state: Any
    later: List[Tuple[Any, Any, int, str]] = field(default_factory=list)

    def finish(self) -> None:
        """Copy the rest. Only reading may happen to the sources meanwhile.

        Raises:
            CheckpointError: a source was changed meanwhile.
        """
        for target, source, _, _ in self.later:
            target.copy_(source)
        changed = [place for _, source, version, place in self.later if source._version != version]  # noqa: SLF001 (torch's own counter of changes, as its documentation names it)
        if changed:
            raise CheckpointError(
                f"{changed[0]} was changed before optimizer.step() while it was being copied, so this checkpoint is "
                "not written; save without `optimizer=`"
            )


class Staging:
    """Memory for the copies, kept from one snapshot to the next: fresh memory costs more than the copying."""

    def __init__(self) -> None:
        self._buffers: Dict[Tuple[Any, ...], Any] = {}

    def snapshot(self, state: Any, unchanging: FrozenSet[int] = frozenset()) -> Snapshot:
        """A copy of ``state`` that shares nothing with it. The one before is overwritten.

        Args:
            unchanging: addresses of tensors that nobody changes for now: they are left to :meth:`Snapshot.finish`.
        """
        import torch

        old, self._buffers = self._buffers, {}
        made = Snapshot(None)
        seen: Dict[Tuple[Any, ...], Any] = {}
        devices = set()

        def copied(value: Any, place: str) -> Any:
            if isinstance(value, torch.Tensor):
                return tensor(value.detach(), place)
            if isinstance(value, dict):
                pairs = [(key, copied(inner, f"{place}.{key}" if place else str(key))) for key, inner in value.items()]
                if not isinstance(value, OrderedDict):
                    return dict(pairs)
                ordered = OrderedDict(pairs)
                if hasattr(value, "_metadata"):  # a state_dict's versions of its modules
                    ordered._metadata = copy.copy(value._metadata)  # type: ignore[attr-defined] # noqa: SLF001
                return ordered
            if type(value) in (list, tuple):
                return type(value)(copied(inner, f"{place}[{number}]") for number, inner in enumerate(value))
            return copy.deepcopy(value)

        def tensor(source: Any, place: str) -> Any:
            if type(source) is not torch.Tensor or source.layout != torch.strided:
                return source.cpu().clone()
            # The same tensor under two names (tied weights) stays one.
            key = (source.data_ptr(), source.dtype, tuple(source.shape), source.stride(), source.device)
            if source.numel() and key in seen:
                return seen[key]
            target = old.get(key)
            if target is None:
                target = torch.empty_like(source, device="cpu", pin_memory=source.is_cuda)
            self._buffers[key] = seen[key] = target
            if source.is_cuda:
                target.copy_(source, non_blocking=True)
                devices.add(source.device)
            elif source.data_ptr() in unchanging:
                made.later.append((target, source, source._version, place))  # noqa: SLF001 (as above)
            else:
                target.copy_(source)
            return target

        made.state = copied(state, "")
        for device in devices:
            torch.cuda.synchronize(device)
        return made


def addresses_of(optimizer: Optional[Any]) -> FrozenSet[int]:
    """Where the tensors lie that only ``optimizer.step()`` changes: its parameters and its state."""
    import torch

    if optimizer is None:
        return frozenset()
    found = {parameter.data_ptr() for group in optimizer.param_groups for parameter in group["params"]}
    found |= {
        value.data_ptr()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    }
    return frozenset(found)
