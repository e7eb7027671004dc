"""The operations as autograd functions: each defines its backward pass."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from trainmaster_train.horovod.controller.messages import ALLTOALL
from trainmaster_train.horovod.reduction import Average, Reduction
from trainmaster_train.horovod.torch.basics import gang
from trainmaster_train.horovod.torch.submit import (
    blocking_allreduce,
    submit,
    submit_allgather,
    submit_allreduce,
    submit_broadcast,
    submit_reducescatter,
)

Tensor = torch.Tensor


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], reduction: Reduction) -> Any:
        ctx.reduction = reduction
        return blocking_allreduce(tensor, name, reduction)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return blocking_allreduce(gradients[0], None, ctx.reduction), None, None


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], reduction: Reduction, *tensors: Tensor) -> Any:
        ctx.reduction = reduction
        return tuple(submit_allreduce(tensors, name, reduction, is_group=True, will_wait=True).result())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *submit_allreduce(gradients, None, ctx.reduction, is_group=True, will_wait=True).result())


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], process_set: int) -> Any:
        ctx.process_set = process_set
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        return submit_allgather(tensor, name, process_set, will_wait=True).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduction = Reduction(Average, 1.0, 1.0, ctx.process_set)
        reduced = blocking_allreduce(gradients[0], None, reduction)
        rows = submit_allgather(torch.tensor([ctx.rows]), None, ctx.process_set, will_wait=True).result().tolist()
        position = gang().engine.members(ctx.process_set).index(gang().ranks.rank)
        return reduced.narrow(0, sum(rows[:position]), ctx.rows), None, None


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: Optional[str], process_set: int) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return submit_broadcast(tensor, root, name, process_set, will_wait=True).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduction = Reduction(Average, 1.0, 1.0, ctx.process_set)
        reduced = blocking_allreduce(gradients[0], None, reduction)
        if gang().ranks.rank != ctx.root:
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
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], reduction: Reduction) -> Any:
        ctx.reduction = reduction
        return submit_reducescatter([tensor], name, reduction).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0]
        reduction: Reduction = ctx.reduction
        if reduction.op == Average:
            gradient = gradient / len(gang().engine.members(reduction.process_set))
        scale = reduction.prescale * reduction.postscale
        if scale != 1.0:
            gradient = gradient * scale
        return submit_allgather(gradient.contiguous(), None, reduction.process_set, will_wait=True).result(), None, None
