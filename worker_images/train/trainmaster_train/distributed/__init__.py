"""Allreduce training in a few lines, for plain scripts: meet, share the data, exchange gradients, leave."""

from __future__ import annotations

from trainmaster_train.distributed.ddp import COMPRESSIONS, accumulate, watch, wrap
from trainmaster_train.distributed.group import DistributedError, World, init, shutdown
from trainmaster_train.distributed.loading import batches
from trainmaster_train.distributed.rank_discovery import Place, find_place

__all__ = [
    "COMPRESSIONS",
    "DistributedError",
    "Place",
    "World",
    "accumulate",
    "batches",
    "find_place",
    "init",
    "shutdown",
    "watch",
    "wrap",
]
