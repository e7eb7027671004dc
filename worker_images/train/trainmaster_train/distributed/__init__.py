"""Data-parallel training in a few lines, for plain scripts: rendezvous, data partitioning, gradient exchange,
shutdown.
"""

from __future__ import annotations

from trainmaster_train.distributed.ddp import COMPRESSIONS, accumulate, batches, watch, wrap
from trainmaster_train.distributed.group import DistributedError, RankInfo, init, shutdown
from trainmaster_train.distributed.rank_discovery import RankAssignment, discover_ranks

__all__ = [
    "COMPRESSIONS",
    "DistributedError",
    "RankAssignment",
    "RankInfo",
    "accumulate",
    "batches",
    "discover_ranks",
    "init",
    "shutdown",
    "watch",
    "wrap",
]
