"""Reduction operations of Horovod's API, independent of the framework."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence

from trainmaster_train.horovod.controller.messages import ADASUM

AVERAGE = "average"


class ReduceOp(NamedTuple):
    """How the tensors of all ranks are combined."""

    name: str


Average = ReduceOp(AVERAGE)
Sum = ReduceOp("sum")
Adasum = ReduceOp(ADASUM)
Min = ReduceOp("min")
Max = ReduceOp("max")
Product = ReduceOp("product")


class Reduction(NamedTuple):
    """A reduction with its scale factors, in a process set."""

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0


def resolve_op(average: Optional[bool], op: Optional[ReduceOp]) -> ReduceOp:
    """Merge Horovod's older ``average=`` with ``op=``. Raises ``ValueError`` for both, or for an unknown op."""
    if average is not None and op is not None:
        raise ValueError("give op= or average=, not both (average= is the older one).")
    if op is not None and not isinstance(op, ReduceOp):
        raise ValueError(f"op={op!r}: use hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max or hvd.Product.")
    if op is None:
        return Sum if average is False else Average
    return op


def check_scatter_op(op: ReduceOp) -> ReduceOp:
    """Check ``op`` of a reducescatter. Raises ``ValueError`` for an unsupported one."""
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter supports Average and Sum, not {getattr(op, 'name', op)}.")
    return op


def check_adasum(size: int, *, is_floating: bool) -> None:
    """Raises ``ValueError`` if Adasum does not support ``size`` ranks or these tensors."""
    if size & (size - 1):
        raise ValueError(f"Adasum needs a number of ranks that is a power of two; here are {size}.")
    if not is_floating:
        raise ValueError("Adasum adds gradients: it needs floating point tensors.")


def adasum(parts: Sequence[Any], widen: Callable[[Any], Any], narrow: Callable[[Any], Any]) -> Any:
    """Adasum of all ranks' tensors or arrays, pair by pair (https://arxiv.org/abs/2006.02924, section 3.1): the sum of
    two where they are orthogonal, the mean where they are parallel.

    Args:
        widen: converts to 64 bits, the precision of the computation; ``narrow``: converts back.
    """
    remaining: List[Any] = list(parts)
    while len(remaining) > 1:
        remaining = [narrow(_pair(widen(a), widen(b))) for a, b in zip(remaining[::2], remaining[1::2])]
    return remaining[0]


def _pair(x: Any, y: Any) -> Any:
    dot, norm_x, norm_y = (x * y).sum(), (x * x).sum(), (y * y).sum()
    scale_x = 1.0 - dot / (2.0 * norm_x) if norm_x > 0 else 1.0
    scale_y = 1.0 - dot / (2.0 * norm_y) if norm_y > 0 else 1.0
    return scale_x * x + scale_y * y


def split_rows(rows: int, size: int) -> List[int]:
    """How many of ``rows`` each of ``size`` ranks gets; the first ranks get the remainder, one row each."""
    return [rows // size + (1 if rank < rows % size else 0) for rank in range(size)]
