"""Cached fast path of a blocking allreduce: the shortest way to the operation that the response cache expects.

The simple equivalent is to submit the operation and to wait for it, which skips the negotiation, too
(controller/response_cache.py). Compared with reducing a megabyte, the Python code of that is noticeable, and it
computes nothing new: request and response are known. So this only checks that the tensor matches the expected
operation, and calls gloo. Everything unusual is submitted.
"""

from __future__ import annotations

from typing import Optional

import torch

from trainmaster_train.horovod.controller.messages import ALLREDUCE
from trainmaster_train.horovod.gang import ProcessGang
from trainmaster_train.horovod.reduction import AVERAGE, Average, Reduction
from trainmaster_train.horovod.torch.backend import TorchBackend, divide

# Types that gloo supports directly, and their names in a request.
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


def cached_allreduce(
    process_gang: ProcessGang, tensor: torch.Tensor, name: Optional[str], reduction: Reduction, *, is_in_place: bool
) -> Optional[torch.Tensor]:
    """The result, or ``None`` if the operation is not the expected one, or needs more than a call of gloo.

    Raises:
        HorovodInternalError: it failed, or the gang is broken.
    """
    engine, backend = process_gang.engine, process_gang.backend
    expected = engine.fast_path.expected
    if (
        expected is None
        or expected.shape != tensor.shape
        or expected.name != (f"{ALLREDUCE}.{name}" if name else ALLREDUCE)
        or expected.op != reduction.op.name
        or expected.dtype != _NAMES.get(tensor.dtype)
        or reduction[1:] != _PLAIN
        or expected.prescale != 1.0
        or expected.postscale != 1.0
        or not (tensor.is_cpu and tensor.is_contiguous())
        or not isinstance(backend, TorchBackend)
    ):
        return None
    buffer = tensor.detach() if tensor.requires_grad else tensor
    if not is_in_place:
        buffer = buffer.clone()
    request = expected if name else expected._replace(name=process_gang.next_name(ALLREDUCE))
    if not engine.run_cached(request, expected, lambda: backend.start_on_fast_path(buffer, expected.op)):
        if not name:
            process_gang.return_name(ALLREDUCE)
        return None
    if expected.op == AVERAGE:
        divide(buffer, process_gang.ranks.size)
    return buffer
