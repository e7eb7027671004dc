"""Ranks that want different things, come late, leave or die."""

from __future__ import annotations

import os
import signal
import time

import torch
import trainmaster_train.horovod.torch as hvd

from scenarios.trying import refused


def joins():
    """Rank r has r + 1 batches."""
    hvd.init()
    rank = hvd.rank()
    sums = [hvd.allreduce(torch.ones(2), op=hvd.Sum, name=f"step{step}").tolist() for step in range(rank + 1)]
    if rank == 2:
        sums.append(hvd.allgather(torch.tensor([rank]), name="rest").tolist())
        refusal = refused(hvd.broadcast, torch.ones(1), 2, name="alone")
    else:
        refusal = None
    last = hvd.join()
    again = hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()
    return {"sums": sums, "last": last, "refusal": refusal, "again": again}


def mismatch():
    hvd.init()
    rank = hvd.rank()
    results = [
        refused(hvd.allreduce, torch.ones(3 + rank), name="shape"),
        refused(hvd.allreduce, torch.ones(3, dtype=torch.float64 if rank else torch.float32), name="dtype"),
        refused(hvd.broadcast, torch.ones(1), rank, name="root"),
        refused(hvd.allgather, torch.ones(1, 2 + rank), name="rows"),
    ]
    # What was refused harms nobody else.
    return [*results, hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()]


def stall():
    hvd.init()
    rank = hvd.rank()
    hvd.barrier()
    if rank == 1:
        time.sleep(4)  # never asks for it
        return refused(hvd.allreduce, torch.ones(1), name="other")
    return refused(hvd.allreduce, torch.ones(1), name="lonely")


def lonely_sets():
    """Rank 0 alone makes a process set, or gives one up: its number tells which."""
    hvd.init()
    pair = hvd.add_process_set([0, 1])
    if hvd.rank():
        time.sleep(4)  # never does so
        return refused(hvd.allreduce, torch.ones(1), name="other")
    return refused(hvd.remove_process_set, pair) if "REMOVES" in os.environ else refused(hvd.add_process_set, [0])


def death():
    """Rank 2 dies while the others wait for it, rank 1 in the middle of something else."""
    hvd.init()
    rank = hvd.rank()
    hvd.allreduce(torch.ones(1))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    results = refused(hvd.allreduce, torch.ones(1000), name="gradient")
    waited = time.monotonic() - began
    later = refused(hvd.allreduce, torch.ones(1), name="later")
    return [*results, waited, later[0]]


def departure():
    """Rank 1 ends in good order although rank 0 still wants something."""
    hvd.init()
    if hvd.rank() == 1:
        hvd.shutdown()
        return None
    return refused(hvd.allreduce, torch.ones(1), name="too late")
