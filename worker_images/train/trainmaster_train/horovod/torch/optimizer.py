"""``hvd.DistributedOptimizer``: gradients are averaged over the ranks while the backward pass still runs."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

import torch

from trainmaster_train.horovod.reduction import Adasum, Average, ReduceOp
from trainmaster_train.horovod.session import ProcessSet, set_number
from trainmaster_train.horovod.torch.basics import gang, global_process_set
from trainmaster_train.horovod.torch.functions import broadcast_object
from trainmaster_train.horovod.torch.ops import (
    Compression,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from trainmaster_train.horovod.torch.submit import AnyHandle

Parameter = torch.nn.Parameter
NamedParameters = Iterable[Tuple[str, Parameter]]
Groups = Union[None, int, Sequence[Sequence[Parameter]]]


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[NamedParameters] = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """``optimizer``, reducing the gradients of all ranks before each step. The result keeps class, options and state;
    do not use the given optimizer any more.

    Args:
        named_parameters: ``model.named_parameters()``: all parameters of the optimizer, with the same names on all
            ranks. By default their order names them.
        backward_passes_per_step: number of backward passes that are accumulated before the reduction.
        op: ``Average``, ``Sum``; ``Adasum`` reduces the steps that each rank would make.
        gradient_predivide_factor: the average divides by it before the sum, and by size / factor after it.
        groups: number of groups of parameters whose gradients are reduced together, or lists of parameters.
        sparse_as_dense: send sparse gradients of embeddings as dense ones.

    Raises:
        ValueError: arguments that exclude each other, or names that are missing or duplicate.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only.")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: must be at least 1.")
    if num_groups and groups is not None:
        raise ValueError("give groups= or num_groups=, not both (num_groups= is the older one).")
    names = _names_of(optimizer, named_parameters)
    mixin = _Adasum if op == Adasum else _Distributed
    base = type(optimizer)
    made: Any = object.__new__(type(base.__name__, (mixin, base), {}))
    # State, options and hooks are shared with the given optimizer, but not a step() that a scheduler has wrapped.
    made.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    made._reducer = _Reducer(  # noqa: SLF001 (it is ours)
        made,
        names,
        compression=compression,
        passes=backward_passes_per_step,
        op=op,
        predivide=gradient_predivide_factor,
        groups=groups if groups is not None else num_groups or None,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    return made


class _Distributed:
    """Mixin over the optimizer's class. Its state is in ``_reducer``, so that no attribute of the class is hidden."""

    _reducer: _Reducer

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, e.g. before clipping. Then step inside :meth:`skip_synchronize`."""
        self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside this context ``step()`` uses the gradients as they are."""
        self._reducer.will_synchronize = False
        try:
            yield
        finally:
            self._reducer.will_synchronize = True

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        reducer = self._reducer
        if closure is not None:
            return super().step(reducer.with_reduction(closure))  # type: ignore[misc]
        reducer.before_step()
        return super().step()  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        self._reducer.check_idle()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._reducer.reset()
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._reducer.set_passes(passes)


class _Adasum(_Distributed):
    """Each rank steps with its own gradients; all apply the Adasum of the resulting changes."""

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        parameters = self._reducer.parameters
        before = [parameter.detach().clone() for parameter in parameters]
        result = super(_Distributed, self).step(*(() if closure is None else (closure,)))  # type: ignore[misc]
        with torch.no_grad():
            changes = [parameter.detach() - old for parameter, old in zip(parameters, before)]
            for parameter, old, change in zip(parameters, before, self._reducer.adasum(changes)):
                parameter.copy_(old + change)
        return result

    def synchronize(self) -> None:
        raise AssertionError("op=hvd.Adasum reduces in step(): optimizer.synchronize() has no gradients to wait for.")


class _Reducer:
    """Hooks that submit each gradient when it is complete, and the handles of those in flight."""

    def __init__(
        self,
        optimizer: Any,
        names: Dict[Parameter, str],
        *,
        compression: Any,
        passes: int,
        op: ReduceOp,
        predivide: float,
        groups: Groups,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.will_synchronize = True
        self._is_synchronized = False
        self._names = names
        self._compression = compression
        self._passes = passes
        self._op = op
        self._predivide = predivide
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self.parameters: List[Parameter] = [
            parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
        ]
        self._passes_left: Dict[Parameter, int] = dict.fromkeys(self.parameters, passes)
        self._handles: Dict[Tuple[Parameter, ...], Tuple[AnyHandle, List[Any]]] = {}
        self._complete: Set[Parameter] = set()
        self._sparse: Set[Parameter] = set()
        self._group_of = self._make_groups(groups)
        if op != Adasum:
            for parameter in self.parameters:
                parameter.register_post_accumulate_grad_hook(self._on_gradient_ready)

    def before_step(self) -> None:
        if not self.will_synchronize:
            self._is_synchronized = False
            return
        if self._is_synchronized:
            warnings.warn(
                "optimizer.step() after optimizer.synchronize() reduces the gradients again; "
                "call it inside `with optimizer.skip_synchronize():`.",
                stacklevel=3,
            )
        self.synchronize()
        self._is_synchronized = False

    def with_reduction(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """``closure``, followed by the reduction of its gradients."""

        def reduced() -> Any:
            # The optimizer calls it with gradients enabled or not; the closure enables them itself.
            result = closure()
            if self.will_synchronize:
                self.synchronize()
            self._is_synchronized = False
            return result

        return reduced

    def synchronize(self) -> None:
        """Submit gradients that are not in flight yet (a rank may have skipped a parameter), and wait for all."""
        if self._is_alone():
            return
        sent = {parameter for key in self._handles for parameter in key}
        for parameter in self.parameters:
            if parameter not in sent:
                sent.update(self._send(parameter))
        for key, (handle, contexts) in self._handles.items():
            result = synchronize(handle)
            for parameter, output, context in zip(key, result if len(contexts) > 1 else [result], contexts):
                _set_gradient(parameter, self._compression.decompress(output, context))
        self.reset()
        self._is_synchronized = True

    def adasum(self, changes: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Adasum of each of ``changes``, in the order of the parameters."""
        handles = []
        for parameter, change in zip(self.parameters, changes):
            small, context = self._compression.compress(change)
            name = f"adasum.{self._names[parameter]}"
            handles.append((allreduce_async_(small, name=name, op=Adasum, process_set=self._process_set), context))
        return [self._compression.decompress(synchronize(handle), context) for handle, context in handles]

    def check_idle(self) -> None:
        if self._handles:
            raise AssertionError(
                "optimizer.zero_grad() was called between loss.backward() and optimizer.step() (or synchronize()), "
                "while the gradients are being reduced: call it before backward()."
            )

    def set_passes(self, passes: int) -> None:
        self._passes = passes
        self.reset()

    def reset(self) -> None:
        self._handles.clear()
        self._complete.clear()
        self._passes_left = dict.fromkeys(self.parameters, self._passes)
        self._is_synchronized = False

    def _is_alone(self) -> bool:
        return len(gang().engine.members(set_number(self._process_set))) == 1

    def _on_gradient_ready(self, parameter: torch.Tensor) -> None:
        """Hook: a backward pass has accumulated this gradient."""
        assert isinstance(parameter, Parameter)  # noqa: S101 (only parameters have the hook)
        if self._is_alone():
            return
        if self._passes_left[parameter] <= 0:
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was computed more often than backward_passes_per_step="
                f"{self._passes} times before optimizer.step(); say how many passes there are."
            )
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._complete.add(parameter)
            if self._complete.issuperset(self._group_of.get(parameter, ())):
                self._send(parameter)

    def _send(self, parameter: Parameter) -> Tuple[Parameter, ...]:
        """Start the reduction of a gradient, or of its whole group; returns their parameters."""
        key = self._group_of.get(parameter, (parameter,))
        if len(key) > 1 and not any(p.grad is not None and p.grad.is_sparse for p in key):
            small, contexts = zip(*(self._compression.compress(self._gradient(p)) for p in key))
            handle: AnyHandle = grouped_allreduce_async_(small, name=self._names[key[0]], **self._reduce_options())
            self._handles[key] = (handle, list(contexts))
            return key
        for member in key:
            self._send_alone(member)
        return key

    def _send_alone(self, parameter: Parameter) -> None:
        gradient, name = self._gradient(parameter), self._names[parameter]
        if gradient.is_sparse:
            handle: AnyHandle = sparse_allreduce_async(gradient, name, self._op, self._process_set)
            self._handles[(parameter,)] = (handle, [None])
            return
        small, context = self._compression.compress(gradient)
        handle = allreduce_async_(small, name=name, **self._reduce_options())
        self._handles[(parameter,)] = (handle, [context])

    def _gradient(self, parameter: Parameter) -> torch.Tensor:
        """The gradient to send; zeros if this rank has none, because other ranks may have one."""
        if parameter.grad is None:
            parameter.grad = (
                torch.zeros_like(parameter).to_sparse(1) if parameter in self._sparse else torch.zeros_like(parameter)
            )
        if parameter.grad.is_sparse:
            if self._sparse_as_dense:
                parameter.grad = parameter.grad.to_dense()
            else:
                self._sparse.add(parameter)
        return parameter.grad

    def _reduce_options(self) -> Dict[str, Any]:
        options: Dict[str, Any] = {"op": self._op, "process_set": self._process_set}
        if self._predivide != 1.0:
            options.update(prescale_factor=1.0 / self._predivide, postscale_factor=self._predivide)
        return options

    def _make_groups(self, groups: Groups) -> Dict[Parameter, Tuple[Parameter, ...]]:
        if groups is None:
            return {}
        if isinstance(groups, int):
            if groups < 1:
                raise ValueError(f"groups={groups}: must be at least 1.")
            # The same groups on all ranks, even if a rank has its parameters in another order.
            order = broadcast_object([self._names[parameter] for parameter in self.parameters], 0)
            by_name = {self._names[parameter]: parameter for parameter in self.parameters}
            ordered = [by_name[name] for name in order]
            length = -(-len(ordered) // groups)
            made = [tuple(ordered[i : i + length]) for i in range(0, len(ordered), length)]
        else:
            made = [tuple(p for p in group if p in self._passes_left) for group in groups]
            flat = [parameter for group in made for parameter in group]
            if len(set(flat)) != len(flat):
                raise ValueError("groups: a parameter is in two groups.")
        return {parameter: group for group in made for parameter in group if len(group) > 1}


def _set_gradient(parameter: Parameter, reduced: torch.Tensor) -> None:
    """Set the gradient to ``reduced``; a tensor that was reduced in place stays the same object."""
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse or reduced.is_sparse:
        parameter.grad = reduced
    elif reduced.data_ptr() != gradient.data_ptr():
        gradient.copy_(reduced)


def _names_of(optimizer: torch.optim.Optimizer, named_parameters: Optional[NamedParameters]) -> Dict[Parameter, str]:
    """Names of all parameters of the optimizer."""
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return {parameter: f"noname.{number}" for number, parameter in enumerate(own)}
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError("named_parameters takes pairs of name and parameter: model.named_parameters().")
    duplicates = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if duplicates:
        raise ValueError(
            f"named_parameters: {', '.join(duplicates[:5])} is named twice; each name is for one parameter."
        )
    names = {parameter: name for name, parameter in named}
    unnamed = sum(parameter not in names for parameter in own)
    if unnamed:
        raise ValueError(
            f"named_parameters: {unnamed} of the optimizer's {len(own)} parameters have no name there; give the names "
            "of all models that it trains."
        )
    return names
