"""Operations as they should be; the expectations are in the tests."""

from __future__ import annotations

import time

import torch
import trainmaster_train.horovod.torch as hvd

from scenarios.trying import refused


def operations():
    """Every operation once; the expectations are in the test."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    results = {"place": [rank, size, hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]}
    results["homogeneous"] = hvd.is_homogeneous()
    mine = torch.tensor([1.0, 2.0, 4.0]) * (rank + 1)
    results["average"] = hvd.allreduce(mine).tolist()
    results["kept"] = mine.tolist()
    for op in ("Sum", "Min", "Max", "Product"):
        results[op] = hvd.allreduce(mine, op=getattr(hvd, op)).tolist()
    results["scaled"] = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=10.0).tolist()
    results["integers"] = hvd.allreduce(torch.tensor([rank, 10]), op=hvd.Average).tolist()
    results["int16"] = hvd.allreduce(torch.tensor([rank], dtype=torch.int16), op=hvd.Sum).tolist()
    results["half"] = hvd.allreduce(mine, compression=hvd.Compression.fp16).tolist()
    results["bfloat16"] = hvd.allreduce(mine.bfloat16(), op=hvd.Sum).float().tolist()
    strided = torch.arange(6.0).reshape(2, 3).t()
    hvd.allreduce_(strided, op=hvd.Sum)
    results["strided"] = strided.tolist()
    in_place = mine.clone()
    results["same tensor"] = hvd.allreduce_(in_place, op=hvd.Sum) is in_place
    results["in place"] = in_place.tolist()
    group = [torch.full((2,), float(rank)), torch.full((3,), 1.0), torch.tensor(5.0)]
    results["group"] = [t.tolist() for t in hvd.grouped_allreduce(group, op=hvd.Sum, name="group")]
    results["gathered"] = hvd.allgather(torch.full((rank, 2), rank)).tolist()
    results["gathered evenly"] = hvd.allgather(torch.tensor([[rank, True]], dtype=torch.int16)).tolist()
    results["group gathered"] = [
        t.tolist() for t in hvd.grouped_allgather([torch.tensor([rank]), torch.ones(rank + 1)])
    ]
    results["broadcast"] = hvd.broadcast(mine > 2, 2).tolist()
    results["scalar broadcast"] = hvd.broadcast_(torch.tensor(rank), 1).item()
    results["object"] = hvd.broadcast_object({"from": rank, "long": "x" * 5000}, 1)["from"]
    results["objects"] = hvd.allgather_object(["of", rank])
    rows, counts = hvd.alltoall(torch.arange(6) + 100 * rank, splits=[1, 2, 3])
    results["alltoall"] = [rows.tolist(), counts.tolist()]
    results["even alltoall"] = hvd.alltoall(torch.arange(3) + 10 * rank).tolist()
    results["scattered"] = hvd.reducescatter(torch.arange(8.0).reshape(4, 2) * (rank + 1), op=hvd.Sum).tolist()
    results["scattered average"] = hvd.reducescatter(torch.ones(3) * rank).tolist()
    pair = hvd.add_process_set([0, 2])
    results["set"] = [pair.included(), pair.size(), pair.rank()]
    if pair.included():
        results["set sum"] = hvd.allreduce(mine, op=hvd.Sum, process_set=pair).tolist()
        results["set broadcast"] = hvd.broadcast(mine, 2, process_set=pair).tolist()
        results["set gathered"] = hvd.allgather(torch.full((rank + 1,), rank), process_set=pair).tolist()
        hvd.barrier(process_set=pair)
    else:
        results["not in set"] = refused(hvd.allreduce, mine, process_set=pair)
    results["removed"] = [hvd.remove_process_set(pair), hvd.remove_process_set(hvd.global_process_set)]
    results["adasum of three"] = refused(hvd.allreduce, mine, op=hvd.Adasum)
    results["bad splits"] = refused(hvd.alltoall, torch.ones(4), splits=[1, 1, 1])
    results["bad root"] = refused(hvd.broadcast, mine, 7)
    results["both"] = refused(hvd.allreduce, mine, average=True, op=hvd.Sum)
    results["scalar gathered"] = refused(hvd.allgather, torch.tensor(1.0))
    if rank:
        hvd.barrier()
    first = hvd.allreduce_async(mine, name="twice")
    if rank == 0:
        # The others have not asked for it yet.
        results["twice"] = refused(hvd.allreduce_async, mine, name="twice")
        hvd.barrier()
    hvd.synchronize(first)
    hvd.shutdown()
    results["after shutdown"] = refused(hvd.rank)
    return results


def gradients():
    hvd.init()
    rank = hvd.rank()
    results = {}
    x = torch.ones(2, requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum) * (rank + 1)).sum().backward()
    results["allreduce"] = x.grad.tolist()
    x = torch.ones(rank + 1, requires_grad=True)
    (hvd.allgather(x) * torch.tensor([1.0, 10.0, 10.0])).sum().backward()
    results["allgather"] = x.grad.tolist()
    x = torch.ones(2, requires_grad=True)
    (hvd.broadcast(x, 1) * 3).sum().backward()
    results["broadcast"] = x.grad.tolist()
    x = torch.ones(2, requires_grad=True)
    (hvd.alltoall(x) * torch.tensor([1.0, 10.0]) * (rank + 1)).sum().backward()
    results["alltoall"] = x.grad.tolist()
    x = torch.ones(2, requires_grad=True)
    (hvd.reducescatter(x) * (rank + 1)).sum().backward()
    results["reducescatter"] = x.grad.tolist()
    x = torch.ones(1, requires_grad=True)
    a, b = hvd.grouped_allreduce([x * 2, x * 3])
    (a + b).sum().backward()
    results["grouped"] = x.grad.tolist()
    results["adasum"] = [
        hvd.allreduce(torch.tensor([1.0, 0.0]) if rank else torch.tensor([0.0, 1.0]), op=hvd.Adasum).tolist(),
        hvd.allreduce(torch.tensor([2.0, 4.0]), op=hvd.Adasum).tolist(),
    ]
    return results


def process_sets():
    """Sets come and go while a training runs, one of a single rank among them; what is wrong harms nothing later."""
    hvd.init()
    rank = hvd.rank()
    results = {"sums": []}
    for turn in range(3):
        pair, alone = hvd.add_process_set([turn % 3, (turn + 1) % 3]), hvd.add_process_set([turn])
        for chosen in (pair, alone):
            if chosen.included():
                results["sums"].append(hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum, process_set=chosen).item())
        # Only one of the pair wants something, and all give the set up.
        waits = hvd.allreduce_async(torch.ones(1), name="late", process_set=pair) if rank == turn else None
        hvd.remove_process_set(pair)
        hvd.remove_process_set(alone)
        if waits is not None:
            results["late"] = refused(hvd.synchronize, waits)
    results["removed"] = [alone.process_set_id, refused(hvd.allreduce, torch.ones(1), process_set=alone)]
    results["other ranks"] = refused(hvd.add_process_set, [0, rank])
    retained = hvd.add_process_set([0, 1])
    hvd.shutdown()
    hvd.init()
    again = hvd.add_process_set(retained)
    results["again"] = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=again).item() if rank < 2 else None
    hvd.barrier()
    return results


def any_order():
    """Each rank starts the same operations in another order, some waiting for theirs in between, from two threads."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    names = [f"t{number}" for number in range(24)]
    turned = names[rank * 7 :] + names[: rank * 7]
    results = []
    for _ in range(5):
        handles = {n: hvd.allreduce_async(torch.full((100,), float(n[1:])), name=n, op=hvd.Sum) for n in turned}
        results.append(all(hvd.synchronize(handles[n])[0].item() == size * float(n[1:]) for n in reversed(turned)))
    # Rank 0 wants b first, the others a: both are asked for before anybody waits.
    order = ["a", "b"] if rank else ["b", "a"]
    handles = [hvd.broadcast_async(torch.tensor([rank]), 1, name=name) for name in order]
    results.append([hvd.synchronize(handle).item() for handle in handles])
    slow = hvd.allreduce_async(torch.ones(1), name="polled")
    deadline = time.monotonic() + 60
    while not hvd.poll(slow) and time.monotonic() < deadline:
        time.sleep(0.001)
    results.append(hvd.poll(slow))
    return results


def many():
    """Fused and alone, small and large, while a backward pass would run: sums are right whatever was put together."""
    hvd.init()
    sizes = [1, 3, 1000, 70_000, 1_200_000, 5, 17]
    wrong = []
    for turn in range(4):
        tensors = [torch.full((count,), float(i + turn)) for i, count in enumerate(sizes * 4)]
        handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=f"m{i}") for i, t in enumerate(tensors)]
        for i, (handle, tensor) in enumerate(zip(handles, tensors, strict=True)):
            hvd.synchronize(handle)
            if not torch.equal(tensor, torch.full_like(tensor, (i + turn) * hvd.size())):
                wrong.append(i)
    return wrong
