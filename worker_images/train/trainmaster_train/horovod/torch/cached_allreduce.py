"""A blocking allreduce that comes round again: the shortest road to the operation that the rhythm has next.

The simple equivalent is to submit it and to wait for it, which starts it unasked, too (horovod/rhythm.py). Beside a
megabyte that is Python enough to be seen, though, and it makes nothing new: request and answer are known. So here is
only compared whether this is that operation, and gloo is called. Whatever is unusual takes the other road.
"""

from __future__ import annotations

from typing import Optional

import torch

from trainmaster_train.horovod.controller.messages import ALLREDUCE
from trainmaster_train.horovod.gang import Gang
from trainmaster_train.horovod.reduction import AVERAGE, Average, Reduction
from trainmaster_train.horovod.torch.backend import TorchBackend, divide

# What gloo adds as it is, and each type's name in a request.
_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
}
# No factors, and all ranks.
_PLAIN = Reduction(Average)[1:]


def reduce_again(
    mine: Gang, tensor: torch.Tensor, name: Optional[str], how: Reduction, *, is_in_place: bool
) -> Optional[torch.Tensor]:
    """The result, or ``None``: it is not what comes next, or needs more than a call of gloo.

    Raises:
        HorovodInternalError: it failed, or the gang is broken.
    """
    engine, backend = mine.engine, mine.backend
    beat = engine.lane.beat
    if (
        beat is None
        or beat.shape != tensor.shape
        or beat.name != (f"{ALLREDUCE}.{name}" if name else ALLREDUCE)
        or beat.op != how.op.name
        or beat.dtype != _NAMES.get(tensor.dtype)
        or how[1:] != _PLAIN
        or beat.prescale != 1.0
        or beat.postscale != 1.0
        or not (tensor.is_cpu and tensor.is_contiguous())
        or not isinstance(backend, TorchBackend)
    ):
        return None
    buffer = tensor.detach() if tensor.requires_grad else tensor
    if not is_in_place:
        buffer = buffer.clone()
    request = beat if name else beat._replace(name=mine.unnamed(ALLREDUCE))
    if not engine.run_beat(request, beat, lambda: backend.start_on_lane(buffer, beat.op)):
        if not name:
            mine.forget_unnamed(ALLREDUCE)
        return None
    if beat.op == AVERAGE:
        divide(buffer, mine.place.size)
    return buffer
