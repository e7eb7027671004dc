"""Training with parameter servers, in a few lines around an ordinary model and optimizer::

    from trainmaster_train import ps

    def train(servers):
        for _ in servers.steps(until=1000):
            loss = loss_of(model(next(batches)))
            loss.backward()
            servers.step(loss=loss)

    ps.run(model, torch.optim.Adam(model.parameters()), train)

The same script runs in every replica; the replica's role decides what :func:`run` does. Needs torch 2.1 or newer, and
pyzmq.
"""

from __future__ import annotations

from trainmaster_train.ps.checkpoint.shard_checkpoint import load_model
from trainmaster_train.ps.errors import (
    DeadlineError,
    LostError,
    NonFiniteGradientError,
    ParameterServerError,
    RefusedError,
)
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.roles import run
from trainmaster_train.ps.worker.servers import Servers

__all__ = [
    "DeadlineError",
    "LostError",
    "NonFiniteGradientError",
    "Options",
    "ParameterServerError",
    "RefusedError",
    "Servers",
    "load_model",
    "run",
]
