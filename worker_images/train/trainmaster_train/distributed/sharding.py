"""The communication of FSDP (``fully_shard``) for the step timer."""

from __future__ import annotations

from typing import Any, Sequence

from trainmaster_train import steps


def watch_sharded(model: Any) -> bool:
    """Time the collectives of each ``fully_shard``ed module in ``model``; ``False``: there is none."""
    found = False
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        if state is None:
            continue
        found = True
        for group in _groups(state()):
            for name in ("_all_gather_comm", "_reduce_scatter_comm"):
                comm = getattr(group, name, None)
                if comm is not None and not isinstance(comm, _Timed):
                    # torch's public `set_custom_…` does the same, but does not tell what was set before.
                    setattr(group, name, _Timed(comm))
    return found


def _groups(state: Any) -> Sequence[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return tuple(groups)
    group = getattr(state, "_fsdp_param_group", None)  # before torch 2.13 one module had one at most
    return () if group is None else (group,)


class _Timed:
    """One of FSDP's collectives. On CPUs the training waits in it; on a GPU it is only put on a stream."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.allocate = comm.allocate

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, **options: Any) -> Any:
        timer = steps.timer()
        with timer.part(steps.COMMUNICATION):
            work = self._comm(output_tensor=output_tensor, input_tensor=input_tensor, group=group, **options)
        whole = max(output_tensor, input_tensor, key=lambda tensor: tensor.numel())
        # As a ring: each process sends all shares but one.
        timer.add_bytes_sent(whole.numel() * whole.element_size() * (group.size() - 1) // group.size())
        return work
