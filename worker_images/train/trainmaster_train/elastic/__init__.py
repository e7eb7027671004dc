"""Elastic training: it continues when a worker is lost, and grows when nodes are free; processes and state stay.

    state = elastic.State(model=model, optimizer=optimizer, step=0)

    @elastic.run
    def train(state):
        ddp = DistributedDataParallel(state.model)
        while state.step < steps:
            …
            state.step += 1
            state.commit()

    train(state)

In a job with ``workers: {min: 2, max: 4}`` the platform announces each *world* (ranks, size, address) to each process.
A script that does not use this module is restarted in place for each world, and continues from its checkpoint.
"""

from __future__ import annotations

from trainmaster_train.elastic.group import Group, PeerLost, WorldChanged, is_peer_loss
from trainmaster_train.elastic.running import State, run, world
from trainmaster_train.elastic.worlds import (
    ElasticWorld,
    WorldError,
    enter,
    first_world,
    is_elastic,
    newest_number,
    next_world,
    own_world,
)

__all__ = [
    "ElasticWorld",
    "Group",
    "PeerLost",
    "State",
    "WorldChanged",
    "WorldError",
    "enter",
    "first_world",
    "is_elastic",
    "is_peer_loss",
    "newest_number",
    "next_world",
    "own_world",
    "run",
    "world",
]
