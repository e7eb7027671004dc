"""The operations as torch's autograd sees them: each knows how a gradient goes back through it."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from trainmaster_train.horovod.controller.messages import ALLTOALL
from trainmaster_train.horovod.reduction import Average, Reduction
from trainmaster_train.horovod.torch.basics import gang
from trainmaster_train.horovod.torch.submit import (
    gather_rows,
    reduce_now,
    reduce_tensors,
    scatter_tensors,
    send_from,
    submit,
)

Tensor = torch.Tensor


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], how: Reduction) -> Any:
        ctx.how = how
        return reduce_now(tensor, name, how)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return reduce_now(gradients[0], None, ctx.how), None, None


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], how: Reduction, *tensors: Tensor) -> Any:
        ctx.how = how
        return tuple(reduce_tensors(tensors, name, how, is_group=True, will_wait=True).result())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *reduce_tensors(gradients, None, ctx.how, is_group=True, will_wait=True).result())


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], process_set: int) -> Any:
        ctx.process_set = process_set
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        return gather_rows(tensor, name, process_set, will_wait=True).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        how = Reduction(Average, 1.0, 1.0, ctx.process_set)
        reduced = reduce_now(gradients[0], None, how)
        rows = gather_rows(torch.tensor([ctx.rows]), None, ctx.process_set, will_wait=True).result().tolist()
        place = gang().engine.members(ctx.process_set).index(gang().place.rank)
        return reduced.narrow(0, sum(rows[:place]), ctx.rows), None, None


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: Optional[str], process_set: int) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return send_from(tensor, root, name, process_set, will_wait=True).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        how = Reduction(Average, 1.0, 1.0, ctx.process_set)
        reduced = reduce_now(gradients[0], None, how)
        if gang().place.rank != ctx.root:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Tuple[int, ...], name: Optional[str], process_set: int) -> Any:
        ctx.process_set = process_set
        output, received = submit(
            [tensor], ALLTOALL, name, process_set, splits=splits, with_splits=True, will_wait=True
        ).result()
        ctx.received = tuple(received.tolist())
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        back = submit([gradients[0]], ALLTOALL, None, ctx.process_set, splits=ctx.received, will_wait=True).result()
        return back, None, None, None


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], how: Reduction) -> Any:
        ctx.how = how
        return scatter_tensors([tensor], name, how).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0]
        how: Reduction = ctx.how
        if how.op == Average:
            gradient = gradient / len(gang().engine.members(how.process_set))
        scale = how.prescale * how.postscale
        if scale != 1.0:
            gradient = gradient * scale
        return gather_rows(gradient.contiguous(), None, how.process_set, will_wait=True).result(), None, None
