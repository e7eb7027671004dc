"""Blocking operations that come round, and what disturbs them."""

from __future__ import annotations

import os
import signal
import time

import torch
import trainmaster_train.horovod.torch as hvd

from scenarios.trying import refused


def messages():
    """A list of the messages that ask other ranks for something or answer them."""
    from trainmaster_train.horovod.controller.link import ControlLink

    sent, send = [], ControlLink.send

    def counted(link, message, *arguments):
        if message.get("requests") or "responses" in message:  # not that something takes long
            sent.append(message)
        return send(link, message, *arguments)

    ControlLink.send = counted
    return sent


def repeats():
    """Loops as scripts have them: blocking operations that come round, others before them, between and after."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ranks = size * (size + 1) // 2
    results = {"wrong": []}

    def check(name, found, expected):
        if found != expected:
            results["wrong"].append([name, found, expected])

    sent = messages()
    for turn in range(60):
        # One with a name, one in place, one without a name; each is right, whoever is how far.
        check(
            "named", hvd.allreduce(torch.tensor([rank + 1.0 + turn]), op=hvd.Sum, name="x").item(), ranks + size * turn
        )
        value = torch.full((1000,), float(rank))
        check("in place", hvd.allreduce_(value, op=hvd.Max, name="y")[0].item(), size - 1.0)
        check("unnamed", hvd.allreduce(torch.tensor(turn)).item(), turn)
        check(
            "scaled", hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, prescale_factor=2.0, name="w").item(), 2.0 * size
        )
        if turn == 29:
            sent.clear()
        if turn == 39:
            results["messages in ten turns"] = len(sent)
    for turn in range(12):
        # Gradients in an order of each rank's own, while the blocking ones go on in theirs.
        names = [f"g{number}" for number in range(5)]
        handles = {n: hvd.allreduce_async(torch.ones(10), op=hvd.Sum, name=n) for n in names[rank:] + names[:rank]}
        check("named", hvd.allreduce(torch.tensor([1.0 + rank]), op=hvd.Sum, name="x").item(), ranks)
        if turn % 3 == 0:
            check("seldom", hvd.broadcast(torch.tensor([rank]), 1).item(), 1)
        for name in reversed(names):
            check(name, hvd.synchronize(handles[name])[0].item(), size)
    for _ in range(8):
        hvd.allreduce(torch.ones(1), name="z")
    # The last rank comes to it in another way.
    for turn in range(3):
        if rank == size - 1:
            found = hvd.synchronize(hvd.allreduce_async(torch.tensor([float(turn)]), op=hvd.Sum, name="z"))
        else:
            found = hvd.allreduce(torch.tensor([float(turn)]), op=hvd.Sum, name="z")
        check("another way", found.item(), size * turn)
    return results


def repeats_until_join():
    """Rank r has r batches more than the first."""
    hvd.init()
    rank = hvd.rank()
    sums = [hvd.allreduce(torch.ones(2), op=hvd.Sum, name="step")[0].item() for _ in range(20 + rank)]
    last = hvd.join()
    again = [hvd.allreduce(torch.ones(1), op=hvd.Sum, name="step").item() for _ in range(8)]
    return {"sums": sums[19:], "last": last, "again": again}


def repeats_and_differs():
    """In the middle of a rhythm one rank comes with another shape; what follows is as right as before."""
    hvd.init()
    for _ in range(10):
        hvd.allreduce(torch.ones(3), name="x")
    results = [refused(hvd.allreduce, torch.ones(3 + hvd.rank() // 2), name="x")]
    sums = [hvd.allreduce(torch.ones(3), op=hvd.Sum, name="x")[0].item() for _ in range(10)]
    return [*results, sums == [hvd.size()] * 10]


def repeats_and_leaves():
    hvd.init()
    for _ in range(10):
        hvd.allreduce(torch.ones(3), name="x")
    if hvd.rank() == 1:
        hvd.shutdown()
        return None
    return refused(hvd.allreduce, torch.ones(3), name="x")


def repeats_and_dies():
    hvd.init()
    for _ in range(10):
        hvd.allreduce(torch.ones(3), name="x")
    if hvd.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return refused(hvd.allreduce, torch.ones(3), name="x")


def repeats_and_stalls():
    hvd.init()
    for _ in range(10):
        hvd.allreduce(torch.ones(3), name="x")
    if hvd.rank() == 1:
        time.sleep(4)  # never comes to it
        return refused(hvd.allreduce, torch.ones(1), name="other")
    return refused(hvd.allreduce, torch.ones(3), name="x")
