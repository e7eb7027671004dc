"""Embedding tables on the worker's side: only the rows that a forward pass reads are pulled, just before it.

The worker has the whole table in memory, but most rows are outdated: each embedding module pulls the rows of its input
right before the look-up. ``prefetch`` requests them earlier, so that they have arrived by then.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Tuple

import torch

from trainmaster_train.ps.errors import NonFiniteGradientError, ParameterServerError
from trainmaster_train.ps.layout import EmbeddingTable, ShardLayout
from trainmaster_train.ps.wire.codec import raw, read

# (ps, header, frames) -> the request's number, or None when that ps is lost
Ask = Callable[[int, Dict[str, Any], List[Any]], Any]
# (ps, number) -> header and frames, or None when that ps was lost and has come back
Await = Callable[[int, Any], Any]


class Embeddings:
    def __init__(self, model: torch.nn.Module, layout: ShardLayout, ps_count: int, ask: Ask, wait: Await) -> None:
        self._count = ps_count
        self._ask = ask
        self._wait = wait
        self._tables: Dict[str, Tuple[EmbeddingTable, torch.nn.Parameter]] = {}
        names: Dict[torch.Tensor, str] = {}
        parameters = dict(model.named_parameters())
        for table in layout.tables:
            self._tables[table.name] = (table, parameters[table.name])
            names[parameters[table.name]] = table.name
        self._modules: Dict[torch.nn.Module, str] = {}
        self._gradients: Dict[str, Tuple[torch.Tensor, torch.Tensor]] = {}
        # Requests in flight: the rows, and the request's number on each ps.
        self._requested: Dict[str, Tuple[torch.Tensor, List[Any]]] = {}
        for module in model.modules():
            if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.weight in names:
                self._modules[module] = names[module.weight]
                module.register_forward_pre_hook(self._before_forward, with_kwargs=True)

    @property
    def names(self) -> List[str]:
        return list(self._tables)

    def prefetch(self, module: torch.nn.Module, indices: torch.Tensor) -> None:
        """Ask for the rows of the coming input ``indices`` of ``module``, without waiting for them."""
        if module not in self._modules:
            raise ParameterServerError("prefetch: takes an Embedding or EmbeddingBag of the model with sparse=True")
        self._request(self._modules[module], indices)

    def fetch_all(self) -> None:
        """Pull all rows of all tables."""
        for name, (table, _) in self._tables.items():
            self._fetch(name, torch.arange(table.rows))

    def gradients(self, ps: int) -> Tuple[List[str], List[Any]]:
        """The tables with gradients for ``ps``, and their frames: row indices there, and the rows.

        Raises:
            NonFiniteGradientError: its message has the tensor's name only.
        """
        names: List[str] = []
        frames: List[Any] = []
        for name, (indices, rows) in self._gradients.items():
            places, own = indices, rows
            if self._count > 1:
                is_on_server = indices % self._count == ps
                places, own = indices[is_on_server].div(self._count, rounding_mode="floor"), rows[is_on_server]
            if len(places):
                names.append(name)
                frames += [raw(places.contiguous()), raw(own.contiguous().flatten())]
        return names, frames

    def gather(self) -> None:
        """Collect the gradients of the backward pass, for :meth:`gradients`."""
        self._gradients = {}
        for name, (_, weight) in self._tables.items():
            if weight.grad is None:
                continue
            if not weight.grad.is_sparse:
                raise ParameterServerError(
                    f"the gradient of `{name}` is dense, though its embedding has sparse=True: another module uses it, "
                    "too; create the embedding with sparse=False"
                )
            gradient = weight.grad.coalesce()
            indices, rows = gradient.indices()[0].cpu(), gradient.values().cpu()
            if not torch.isfinite(rows).all():
                raise NonFiniteGradientError(f"`{name}`")
            self._gradients[name] = (indices, rows)

    def _before_forward(self, module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        indices = args[0] if args else kwargs["input"]
        self._fetch(self._modules[module], indices)

    def _fetch(self, name: str, indices: torch.Tensor) -> None:
        """Pull the rows ``indices`` into the table, using prefetched ones if possible."""
        requested = self._requested.pop(name, None)
        if requested is not None:
            self._receive(name, *requested)
            indices_to_fetch = indices.detach().cpu().flatten().unique()  # type: ignore[no-untyped-call]
            indices = indices_to_fetch[~torch.isin(indices_to_fetch, requested[0])]
            if not indices.numel():
                return
        self._request(name, indices)
        self._receive(name, *self._requested.pop(name))

    def _request(self, name: str, indices: torch.Tensor) -> None:
        rows = indices.detach().cpu().flatten().unique()  # type: ignore[no-untyped-call]
        table, _ = self._tables[name]
        if rows.numel() and (int(rows[0]) < 0 or int(rows[-1]) >= table.rows):
            raise IndexError(f"`{name}` has {table.rows} rows; the input asks for {int(rows[0])} to {int(rows[-1])}")
        numbers = []
        for ps in range(self._count):
            places = self._rows_on(rows, ps).div(self._count, rounding_mode="floor")
            numbers.append(self._ask(ps, {"op": "rows", "table": name}, [raw(places)]) if len(places) else None)
        self._requested[name] = (rows, numbers)

    def _receive(self, name: str, rows: torch.Tensor, numbers: List[Any]) -> None:
        table, weight = self._tables[name]
        for ps in range(self._count):
            own_rows = self._rows_on(rows, ps)
            if not len(own_rows):
                continue
            answer = self._wait(ps, numbers[ps])
            while answer is None:  # that ps was lost, and is back: request again
                places = own_rows.div(self._count, rounding_mode="floor")
                answer = self._wait(ps, self._ask(ps, {"op": "rows", "table": name}, [raw(places)]))
            values = read(answer[1][0], table.dtype, len(own_rows) * table.columns).view(-1, table.columns)
            with torch.no_grad():
                weight.data.index_copy_(0, own_rows.to(weight.device), values.to(weight.device))

    def _rows_on(self, rows: torch.Tensor, ps: int) -> torch.Tensor:
        return rows if self._count == 1 else rows[rows % self._count == ps]
