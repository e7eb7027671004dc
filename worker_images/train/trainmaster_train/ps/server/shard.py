"""The shard of one ps: its part of the values, and the optimizer with its state. Independent of network and workers.

The optimizer is one of ``torch.optim``, created again on the shard's flat blocks. Only element-wise optimizers are
supported, because a block is not a tensor of the model. For tables it sees only the touched rows, gathered with their
state and scattered back: momentum and decay of a row advance only when the row is updated.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from trainmaster_train.ps.errors import ParameterServerError, RefusedError
from trainmaster_train.ps.layout import EmbeddingTable, ShardLayout, learning_rates, pieces, slice_of

ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop")
_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")

# Of one slab's slice or one table: its values, and the optimizer's state by name.
TensorAndState = Tuple[torch.Tensor, Dict[str, torch.Tensor]]
# Called with the indices of the blocks that have their new values.
OnUpdated = Callable[[range], None]
RowGradients = Tuple[torch.Tensor, torch.Tensor]  # indices (int64, unique, of this shard), and the gradient's rows


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises ``ParameterServerError`` for an optimizer that cannot work on parts of tensors."""
    name = type(optimizer).__name__
    if name not in ELEMENTWISE or not type(optimizer).__module__.startswith("torch.optim"):
        raise ParameterServerError(
            f"optimizer: {name} is none of torch's {', '.join(ELEMENTWISE)}, which work on parts of tensors"
        )
    for group in optimizer.param_groups:
        if group.get("differentiable") or group.get("capturable"):
            raise ParameterServerError(
                "optimizer: differentiable and capturable have no meaning on a ps; leave them out"
            )


class Shard:
    """``version`` counts the applied updates. One thread at a time."""

    def __init__(self, layout: ShardLayout, optimizer: torch.optim.Optimizer, ps: int, count: int) -> None:
        """Allocate the values (zeros) and create the optimizer.

        Raises:
            MemoryError: there is not enough memory.
        """
        self.layout = layout
        self.ps = ps
        self.count = count
        self.version = 0
        self.blocks = layout.blocks(ps, count)
        self.pieces = pieces(self.blocks, layout.slabs)
        with no_memory(f"{layout.bytes_of(ps, count) / 2**20:.0f} MiB of values"):
            self._flat = [torch.zeros(len(range(*slice_of(s.size, ps, count))), dtype=s.dtype) for s in layout.slabs]
            self._tables = {t.name: _TableShard(t, t.rows_of(ps, count), optimizer) for t in layout.tables}
        self.values: List[torch.Tensor] = []
        for block in self.blocks:
            begin, _ = slice_of(layout.slabs[block.slab].size, ps, count)
            self.values.append(self._flat[block.slab][block.begin - begin : block.end - begin])
        slabs: Dict[int, List[torch.Tensor]] = {}
        for block, values in zip(self.blocks, self.values):
            slabs.setdefault(block.slab, []).append(values)
        self._group_numbers = [layout.slabs[slab].group for slab in slabs]
        # One group for each slab: the user's groups may have several dtypes.
        groups = list(zip(self._group_numbers, slabs.values()))
        self._optimizer = make_optimizer(optimizer, groups) if groups else None
        self.learning_rates = learning_rates(optimizer)

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """One for each of the user's groups."""
        self.learning_rates = list(rates)
        if self._optimizer is not None:
            for group, number in zip(self._optimizer.param_groups, self._group_numbers):
                group["lr"] = rates[number]
        for table in self._tables.values():
            table.set_learning_rate(rates[table.table.group])

    def apply(
        self,
        gradients: Sequence[torch.Tensor],
        rows: Mapping[str, RowGradients],
        lr_scale: float = 1.0,
        on_updated: Optional[OnUpdated] = None,
    ) -> None:
        """One step of the optimizer; ``gradients`` are those of ``blocks``, and are not modified.

        The step goes over ``pieces`` in order; ``on_updated`` is called after each, while its values are in the cache.

        Raises:
            MemoryError: there is not enough memory for the optimizer's state.
        """
        with no_memory("the optimizer's state"):
            if self._optimizer is not None:
                with scaled(self._optimizer, lr_scale):
                    for piece in self.pieces:
                        self._step(self._optimizer, piece, gradients)
                        if on_updated is not None:
                            on_updated(piece)
            for name, (indices, gradient) in rows.items():
                self._tables[name].apply(indices, gradient, lr_scale)
        self.version += 1

    def _step(self, optimizer: torch.optim.Optimizer, piece: range, gradients: Sequence[torch.Tensor]) -> None:
        for number in piece:
            self.values[number].grad = gradients[number]
        optimizer.step()  # skips blocks without a gradient
        for number in piece:
            self.values[number].grad = None

    def rows(self, name: str, indices: torch.Tensor) -> torch.Tensor:
        """Rows of a table, by their indices in this shard.

        Raises:
            RefusedError: there is no such table or row.
        """
        self.check_rows(name, indices)
        return self._tables[name].values.index_select(0, indices)

    def set_rows(self, name: str, begin: int, values: torch.Tensor) -> None:
        """Set values of a table, from row ``begin`` of this shard on."""
        self._tables[name].values[begin : begin + len(values)] = values

    def check_rows(self, name: str, indices: torch.Tensor) -> EmbeddingTable:
        table = self._tables.get(name)
        if table is None:
            raise RefusedError(f"there is no table {name!r} here")
        if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= len(table.values)):
            raise RefusedError(f"{name}: a row outside of its {table.table.rows}")
        return table.table

    def state(self) -> Tuple[List[TensorAndState], Dict[str, TensorAndState]]:
        """Copies of the whole shard: of each slab's slice, and of each table."""
        with no_memory("the copy of the shard that is written as a checkpoint"):
            slabs: List[TensorAndState] = []
            for number, flat in enumerate(self._flat):
                own = [values for block, values in zip(self.blocks, self.values) if block.slab == number]
                slabs.append((flat.clone(), self._gathered(own)))
            return slabs, {name: (t.values.clone(), t.copied_state()) for name, t in self._tables.items()}

    def restore(
        self,
        slabs: Sequence[TensorAndState],
        tables: Mapping[str, TensorAndState],
        version: int,
        rates: Optional[Sequence[float]] = None,
    ) -> None:
        """Restore what :meth:`state` returned, and the learning rates of then (``None``: those of the script)."""
        for number, (flat, state) in enumerate(slabs):
            self._flat[number].copy_(flat)
            begin, _ = slice_of(self.layout.slabs[number].size, self.ps, self.count)
            for block, values in zip(self.blocks, self.values):
                if block.slab == number and state and self._optimizer is not None:
                    part = slice(block.begin - begin, block.end - begin)
                    self._optimizer.state[values] = {
                        key: (value[part] if value.dim() else value).clone() for key, value in state.items()
                    }
        for name, (values, state) in tables.items():
            self._tables[name].restore(values, state)
        if rates is not None:
            self.set_learning_rates(rates)
        self.version = version

    def _gathered(self, blocks: Sequence[torch.Tensor]) -> Dict[str, torch.Tensor]:
        """The state of consecutive blocks, concatenated."""
        if not blocks or self._optimizer is None:
            return {}
        states = [self._optimizer.state[values] for values in blocks]
        gathered: Dict[str, torch.Tensor] = {}
        for key, first in states[0].items():
            if is_elementwise_state(first, blocks[0]):
                gathered[key] = torch.cat([state[key] for state in states])
            elif isinstance(first, (torch.Tensor, int, float)):
                gathered[key] = torch.as_tensor(first).clone()
        return gathered


class _TableShard:
    """A table's rows on this ps, with an optimizer that sees only touched rows."""

    def __init__(self, table: EmbeddingTable, rows: int, optimizer: torch.optim.Optimizer) -> None:
        self.table = table
        self.values = torch.zeros(rows, table.columns, dtype=table.dtype)
        seed = torch.zeros(1, table.columns, dtype=table.dtype)
        self._optimizer = make_optimizer(optimizer, [(table.group, [seed])])
        # The state before the first step (Adagrad's initial accumulator) is the same for all elements.
        self._state: Dict[str, torch.Tensor] = {}
        for key, value in self._optimizer.state.get(seed, {}).items():
            if is_elementwise_state(value, seed):
                self._state[key] = torch.full_like(self.values, float(value.flatten()[0]))
            else:
                self._state[key] = torch.as_tensor(value)

    def set_learning_rate(self, rate: float) -> None:
        self._optimizer.param_groups[0]["lr"] = rate

    def apply(self, indices: torch.Tensor, gradient: torch.Tensor, lr_scale: float) -> None:
        if not indices.numel():
            return
        touched = self.values.index_select(0, indices)
        touched.grad = gradient
        self._optimizer.param_groups[0]["params"] = [touched]
        state = {key: value.index_select(0, indices) if value.dim() else value for key, value in self._state.items()}
        self._optimizer.state.clear()
        if state:
            self._optimizer.state[touched] = state
        with scaled(self._optimizer, lr_scale):
            self._optimizer.step()
        touched.grad = None
        self.values.index_copy_(0, indices, touched)
        for key, value in self._optimizer.state[touched].items():
            if is_elementwise_state(value, touched):
                if key not in self._state:
                    self._state[key] = torch.zeros_like(self.values)
                self._state[key].index_copy_(0, indices, value)
            elif value is not None:
                self._state[key] = torch.as_tensor(value)
        self._optimizer.state.clear()

    def copied_state(self) -> Dict[str, torch.Tensor]:
        return {key: value.clone() for key, value in self._state.items()}

    def restore(self, values: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
        self.values.copy_(values)
        self._state.update({key: value.clone() for key, value in state.items()})


def make_optimizer(
    template: torch.optim.Optimizer, groups: Sequence[Tuple[int, List[torch.Tensor]]]
) -> torch.optim.Optimizer:
    """An optimizer like ``template`` for other tensors. ``groups``: index of the template's group, and the tensors."""
    kind = type(template)
    known = inspect.signature(kind).parameters
    parameters = []
    for number, tensors in groups:
        options = {name: value for name, value in template.param_groups[number].items() if name != "params"}
        options["lr"] = float(options["lr"])
        if "fused" in options:
            # One pass over the memory instead of several. Not for half precision: on CPUs torch's fused SGD keeps a
            # bfloat16 momentum ten times less exactly than the plain one (2.13).
            options["fused"] = kind.__name__ in _FUSED and tensors[0].dtype in (torch.float32, torch.float64)
            options["foreach"] = False if options["fused"] else None
        parameters.append({**options, "params": tensors})
    defaults = {name: value for name, value in template.defaults.items() if name in known}
    defaults.update({name: None for name in ("foreach", "fused") if name in defaults})
    made: torch.optim.Optimizer = kind(parameters, **{**defaults, "lr": float(defaults["lr"])})
    return made


def is_elementwise_state(value: Any, parameter: torch.Tensor) -> bool:
    """Whether a part of an optimizer's state has one value for each element of ``parameter``."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == parameter.shape


@contextmanager
def scaled(optimizer: torch.optim.Optimizer, scale: float) -> Iterator[None]:
    """Multiply the learning rates by ``scale`` inside the context."""
    if scale == 1.0:
        yield
        return
    rates: List[Optional[float]] = [group["lr"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["lr"] *= scale
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate


class _NoMemoryError(MemoryError):
    """A ``MemoryError`` that says for what there is no memory."""


@contextmanager
def no_memory(use: str) -> Iterator[None]:
    """Convert torch's error of a failed allocation into a ``MemoryError`` that says for what. Of nested contexts the
    innermost one describes it.
    """
    try:
        yield
    except _NoMemoryError:
        raise
    except MemoryError as error:
        raise _NoMemoryError(use) from error
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error) and "out of memory" not in str(error):
            raise
        raise _NoMemoryError(use) from error
