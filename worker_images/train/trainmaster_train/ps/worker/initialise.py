"""The first values: what the chief's model was made with."""

from __future__ import annotations

from typing import Any, List, Sequence

import torch

from trainmaster_train.ps.layout import Block, learning_rates
from trainmaster_train.ps.wire.codec import raw
from trainmaster_train.ps.worker.connection import Connection
from trainmaster_train.ps.worker.gradients import Values

_MESSAGE_BYTES = 16 << 20


def fill(
    connection: Connection,
    values: Values,
    blocks: Sequence[Block],
    optimizer: torch.optim.Optimizer,
    *,
    ps_count: int,
    timeout_s: float,
) -> None:
    """Give a ps the values of ``blocks`` and its rows of all tables. Raises as :meth:`Connection.answer`."""
    number = connection.reserve()
    at = 0
    while at < len(blocks):
        numbers: List[int] = []
        frames: List[Any] = []
        while at < len(blocks) and sum(frame.nbytes for frame in frames) < _MESSAGE_BYTES:
            numbers.append(at)
            frames.append(raw(values.of(blocks[at]).clone()))
            at += 1
        connection.send({"op": "fill", "blocks": numbers}, frames, number=number)
    for table in values.layout.tables:
        own = values.parameters[table.name].detach()[connection.ps :: ps_count]
        size = max(1, _MESSAGE_BYTES // (table.columns * table.dtype.itemsize))
        for begin in range(0, len(own), size):
            rows = raw(own[begin : begin + size].cpu().contiguous().clone().flatten())
            connection.send({"op": "fill", "table": table.name, "begin": begin}, [rows], number=number)
    last = {"op": "fill", "last": True, "rates": learning_rates(optimizer)}
    connection.send(last, number=number)
    connection.answer(number, timeout_s, "the first values")
