"""What the ranks do in the tests; each function runs in every rank, and what it returns must be JSON."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
import trainmaster_train.horovod.torch as hvd

torch.set_num_threads(1)


def refused(call, *arguments, **named):
    """The exception's name and text."""
    try:
        call(*arguments, **named)
    except Exception as error:  # noqa: BLE001
        return [type(error).__name__, str(error)]
    return None


def operations():
    """Every operation once; the expectations are in the test."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    told = {"place": [rank, size, hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]}
    told["homogeneous"] = hvd.is_homogeneous()
    mine = torch.tensor([1.0, 2.0, 4.0]) * (rank + 1)
    told["average"] = hvd.allreduce(mine).tolist()
    told["kept"] = mine.tolist()
    for op in ("Sum", "Min", "Max", "Product"):
        told[op] = hvd.allreduce(mine, op=getattr(hvd, op)).tolist()
    told["scaled"] = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=10.0).tolist()
    told["integers"] = hvd.allreduce(torch.tensor([rank, 10]), op=hvd.Average).tolist()
    told["int16"] = hvd.allreduce(torch.tensor([rank], dtype=torch.int16), op=hvd.Sum).tolist()
    told["half"] = hvd.allreduce(mine, compression=hvd.Compression.fp16).tolist()
    told["bfloat16"] = hvd.allreduce(mine.bfloat16(), op=hvd.Sum).float().tolist()
    strided = torch.arange(6.0).reshape(2, 3).t()
    hvd.allreduce_(strided, op=hvd.Sum)
    told["strided"] = strided.tolist()
    in_place = mine.clone()
    told["same tensor"] = hvd.allreduce_(in_place, op=hvd.Sum) is in_place
    told["in place"] = in_place.tolist()
    group = [torch.full((2,), float(rank)), torch.full((3,), 1.0), torch.tensor(5.0)]
    told["group"] = [t.tolist() for t in hvd.grouped_allreduce(group, op=hvd.Sum, name="group")]
    told["gathered"] = hvd.allgather(torch.full((rank, 2), rank)).tolist()
    told["gathered evenly"] = hvd.allgather(torch.tensor([[rank, True]], dtype=torch.int16)).tolist()
    told["group gathered"] = [t.tolist() for t in hvd.grouped_allgather([torch.tensor([rank]), torch.ones(rank + 1)])]
    told["broadcast"] = hvd.broadcast(mine > 2, 2).tolist()
    told["scalar broadcast"] = hvd.broadcast_(torch.tensor(rank), 1).item()
    told["object"] = hvd.broadcast_object({"from": rank, "long": "x" * 5000}, 1)["from"]
    told["objects"] = hvd.allgather_object(["of", rank])
    rows, counts = hvd.alltoall(torch.arange(6) + 100 * rank, splits=[1, 2, 3])
    told["alltoall"] = [rows.tolist(), counts.tolist()]
    told["even alltoall"] = hvd.alltoall(torch.arange(3) + 10 * rank).tolist()
    told["scattered"] = hvd.reducescatter(torch.arange(8.0).reshape(4, 2) * (rank + 1), op=hvd.Sum).tolist()
    told["scattered average"] = hvd.reducescatter(torch.ones(3) * rank).tolist()
    pair = hvd.add_process_set([0, 2])
    told["set"] = [pair.included(), pair.size(), pair.rank()]
    if pair.included():
        told["set sum"] = hvd.allreduce(mine, op=hvd.Sum, process_set=pair).tolist()
        told["set broadcast"] = hvd.broadcast(mine, 2, process_set=pair).tolist()
        told["set gathered"] = hvd.allgather(torch.full((rank + 1,), rank), process_set=pair).tolist()
        hvd.barrier(process_set=pair)
    else:
        told["not in set"] = refused(hvd.allreduce, mine, process_set=pair)
    told["removed"] = [hvd.remove_process_set(pair), hvd.remove_process_set(hvd.global_process_set)]
    told["adasum of three"] = refused(hvd.allreduce, mine, op=hvd.Adasum)
    told["bad splits"] = refused(hvd.alltoall, torch.ones(4), splits=[1, 1, 1])
    told["bad root"] = refused(hvd.broadcast, mine, 7)
    told["both"] = refused(hvd.allreduce, mine, average=True, op=hvd.Sum)
    told["scalar gathered"] = refused(hvd.allgather, torch.tensor(1.0))
    if rank:
        hvd.barrier()
    first = hvd.allreduce_async(mine, name="twice")
    if rank == 0:
        # The others have not asked for it yet.
        told["twice"] = refused(hvd.allreduce_async, mine, name="twice")
        hvd.barrier()
    hvd.synchronize(first)
    hvd.shutdown()
    told["after shutdown"] = refused(hvd.rank)
    return told


def gradients():
    hvd.init()
    rank = hvd.rank()
    told = {}
    x = torch.ones(2, requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum) * (rank + 1)).sum().backward()
    told["allreduce"] = x.grad.tolist()
    x = torch.ones(rank + 1, requires_grad=True)
    (hvd.allgather(x) * torch.tensor([1.0, 10.0, 10.0])).sum().backward()
    told["allgather"] = x.grad.tolist()
    x = torch.ones(2, requires_grad=True)
    (hvd.broadcast(x, 1) * 3).sum().backward()
    told["broadcast"] = x.grad.tolist()
    x = torch.ones(2, requires_grad=True)
    (hvd.alltoall(x) * torch.tensor([1.0, 10.0]) * (rank + 1)).sum().backward()
    told["alltoall"] = x.grad.tolist()
    x = torch.ones(2, requires_grad=True)
    (hvd.reducescatter(x) * (rank + 1)).sum().backward()
    told["reducescatter"] = x.grad.tolist()
    x = torch.ones(1, requires_grad=True)
    a, b = hvd.grouped_allreduce([x * 2, x * 3])
    (a + b).sum().backward()
    told["grouped"] = x.grad.tolist()
    told["adasum"] = [
        hvd.allreduce(torch.tensor([1.0, 0.0]) if rank else torch.tensor([0.0, 1.0]), op=hvd.Adasum).tolist(),
        hvd.allreduce(torch.tensor([2.0, 4.0]), op=hvd.Adasum).tolist(),
    ]
    return told


def any_order():
    """Each rank starts the same operations in another order, some waiting for theirs in between, from two threads."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    names = [f"t{number}" for number in range(24)]
    turned = names[rank * 7 :] + names[: rank * 7]
    told = []
    for _ in range(5):
        handles = {n: hvd.allreduce_async(torch.full((100,), float(n[1:])), name=n, op=hvd.Sum) for n in turned}
        told.append(all(hvd.synchronize(handles[n])[0].item() == size * float(n[1:]) for n in reversed(turned)))
    # Rank 0 wants b first, the others a: both are asked for before anybody waits.
    order = ["a", "b"] if rank else ["b", "a"]
    handles = [hvd.broadcast_async(torch.tensor([rank]), 1, name=name) for name in order]
    told.append([hvd.synchronize(handle).item() for handle in handles])
    slow = hvd.allreduce_async(torch.ones(1), name="polled")
    deadline = time.monotonic() + 60
    while not hvd.poll(slow) and time.monotonic() < deadline:
        time.sleep(0.001)
    told.append(hvd.poll(slow))
    return told


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
    told = [
        refused(hvd.allreduce, torch.ones(3 + rank), name="shape"),
        refused(hvd.allreduce, torch.ones(3, dtype=torch.float64 if rank else torch.float32), name="dtype"),
        refused(hvd.broadcast, torch.ones(1), rank, name="root"),
        refused(hvd.allgather, torch.ones(1, 2 + rank), name="rows"),
    ]
    # What was refused harms nobody else.
    return [*told, hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist()]


def stall():
    hvd.init()
    rank = hvd.rank()
    hvd.barrier()
    if rank == 1:
        time.sleep(4)  # never asks for it
        return refused(hvd.allreduce, torch.ones(1), name="other")
    return refused(hvd.allreduce, torch.ones(1), name="lonely")


def death():
    """Rank 2 dies while the others wait for it, rank 1 in the middle of something else."""
    hvd.init()
    rank = hvd.rank()
    hvd.allreduce(torch.ones(1))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    told = refused(hvd.allreduce, torch.ones(1000), name="gradient")
    waited = time.monotonic() - began
    later = refused(hvd.allreduce, torch.ones(1), name="later")
    return [*told, waited, later[0]]


def departure():
    """Rank 1 ends in good order although rank 0 still wants something."""
    hvd.init()
    if hvd.rank() == 1:
        hvd.shutdown()
        return None
    return refused(hvd.allreduce, torch.ones(1), name="too late")


def model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def data(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 3, generator=generator)


def weights(net):
    return [round(value, 5) for parameter in net.parameters() for value in parameter.detach().flatten().tolist()]


def train(net, optimizer, rank, steps=3, passes=1):
    x, y = data(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            own = slice(part * 6 // passes, (part + 1) * 6 // passes)
            ((net(x[own]) - y[own]) ** 2).mean().backward()
        optimizer.step()
    return weights(net)


def optimizers():
    """The same training in many ways; the test computes what one process with all data would get."""
    hvd.init()
    rank = hvd.rank()
    told = {}

    def made(**options):
        net = model(seed=1 + rank)
        inner = torch.optim.Adam(net.parameters(), lr=0.05)
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        return net, hvd.DistributedOptimizer(inner, named_parameters=net.named_parameters(), **options)

    for name, options in {
        "plain": {},
        "groups": {"groups": 2},
        "predivide": {"gradient_predivide_factor": 2.0},
        "half": {"compression": hvd.Compression.fp16},
    }.items():
        net, optimizer = made(**options)
        told[name] = train(net, optimizer, rank)
    net, optimizer = made(backward_passes_per_step=2)
    told["passes"] = train(net, optimizer, rank, passes=2)
    told["class"] = [type(optimizer).__name__, isinstance(optimizer, torch.optim.Adam)]
    net, optimizer = made()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(net, optimizer, rank, steps=1)
    schedule.step()
    told["rate"] = optimizer.param_groups[0]["lr"]

    # Clipping between the two.
    x, y = data(rank)
    optimizer.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    told["too early"] = refused(optimizer.zero_grad)
    optimizer.synchronize()
    gradient = net[0].weight.grad.clone()
    told["synchronized"] = torch.equal(hvd.broadcast(gradient, 1), gradient)
    with optimizer.skip_synchronize():
        optimizer.step()

    # A parameter that only one rank's pass touches.
    net = model()
    extra = torch.nn.Parameter(torch.zeros(2))
    inner = torch.optim.SGD([*net.parameters(), extra], lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, [*net.named_parameters(), ("extra", extra)])
    loss = net(x).sum() + (extra.sum() if rank == 1 else 0)
    loss.backward()
    optimizer.step()
    told["dynamic"] = extra.tolist()

    # More passes than were announced.
    net(x).sum().backward()
    told["too many"] = refused(net(x).sum().backward)
    optimizer.synchronize()

    # The state of the one that has some.
    net = model()
    inner = torch.optim.Adam(net.parameters(), lr=0.1 if rank == 0 else 0.7)
    if rank == 0:
        train(net, inner, rank, steps=2)
    hvd.broadcast_optimizer_state(inner, root_rank=0)
    state = inner.state_dict()
    told["state"] = [
        state["param_groups"][0]["lr"],
        [round(v["exp_avg"].sum().item(), 6) for v in state["state"].values()],
    ]

    # A closure, as line searches have it.
    net, optimizer = made()

    def closure():
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    told["closure"] = weights(net)

    # Sparse gradients of an embedding.
    for as_dense in (False, True):
        torch.manual_seed(3)
        table = torch.nn.Embedding(5, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=as_dense
        )
        before = table.weight.detach().clone()
        table(torch.tensor([rank, 4, 4])).sum().backward()
        optimizer.step()
        told[f"embedding {as_dense}"] = (before - table.weight.detach()).round(decimals=4).tolist()

    # Adasum of ranks that agree is what each would do alone.
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), op=hvd.Adasum)
    told["adasum"] = train(net, optimizer, 0)
    net = model()
    told["alone"] = train(net, torch.optim.SGD(net.parameters(), lr=0.1), 0)

    net = model()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    named = list(net.named_parameters())
    told["doubled"] = refused(hvd.DistributedOptimizer, plain, [*named, named[0]])
    told["unnamed"] = refused(hvd.DistributedOptimizer, plain, named[:1])
    told["no pairs"] = refused(hvd.DistributedOptimizer, plain, net.parameters())
    told["factor"] = refused(hvd.DistributedOptimizer, plain, named, op=hvd.Sum, gradient_predivide_factor=2.0)
    return told


def elastic():
    """Rank 1 of the first gang fails once; all meet anew, at another port, and go on from the last commit."""
    from trainmaster_train.horovod.torch import elastic as hvd_elastic

    ports = iter(os.environ["NEXT_PORTS"].split(","))
    rejoined = []

    def rejoin():
        os.environ["MASTER_PORT"] = next(ports)
        rejoined.append(1)
        return True

    is_changing = []
    hvd_elastic.meet_anew(rejoin, lambda: bool(is_changing))
    hvd.init()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sampler = hvd_elastic.ElasticSampler(range(10), shuffle=False)
    state = hvd_elastic.TorchState(model=net, optimizer=optimizer, sampler=sampler, step=0)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])
    steps = []

    @hvd_elastic.run
    def work(state):
        while state.step < 4:
            hvd.allreduce(torch.ones(1), name="step")
            steps.append(state.step)
            if state.step == 0:
                state.sampler.record_batch(0, 2)
            state.step += 1
            if len(steps) == 2:
                # Not committed: this step is done again.
                raise hvd.HorovodInternalError("made up")
            state.commit()
            if state.step == 3 and not is_changing and hvd.rank() == 1 and len(rejoined) == 1:
                is_changing.append(1)
                continue
            is_changing.clear()
        return sorted(state.sampler.remaining_indices)

    left = work(state)
    hvd_elastic.meet_anew(None)
    return {"steps": steps, "resets": resets, "rejoined": len(rejoined), "left": left, "size": hvd.size()}


def worlds():
    """Rank 0 of three is killed when one of the others has committed and one has not; later a fourth process joins.

    The world files are the platform's part; who is about to die, and who is there when one waits to join, writes them.
    """
    from trainmaster_train import elastic

    signal.alarm(200)  # whoever waits for one that failed ends, too
    number = int(os.environ.pop("RANK"))
    folder = Path(os.environ["WORLDS"])
    first, second, third = os.environ["PORTS"].split(",")

    def put(name, told):
        new = folder / str(name) / "world.json.new"
        new.parent.mkdir(exist_ok=True)
        new.write_text(json.dumps(told))
        new.replace(new.with_name("world.json"))

    def tell(world, port, order, names=None):
        for rank, name in enumerate(order):
            if name not in (names or order):
                continue
            own = {"RANK": rank, "WORLD_SIZE": len(order), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
            own |= {"HOROVOD_RANK": rank, "HOROVOD_SIZE": len(order), "HOROVOD_HOSTNAME": f"worker-{name}"}
            own |= {"HOROVOD_LOCAL_RANK": 0, "HOROVOD_LOCAL_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            told = {"world": world, "processes": [{key: str(value) for key, value in own.items()}]}
            put(name, told)
            if world == 1 and name == number:
                os.environ.update(told["processes"][0], TRAINMASTER_WORLD="1")

    os.environ.update(TRAINMASTER_WORLD_FILE=f"{folder}/{number}/world.json", LOCAL_RANK="0", TRAINMASTER_WORLD="0")
    if number < 3:
        tell(1, first, [0, 1, 2], [number])
    else:
        put(3, {"world": 0, "processes": [{}]})
    hvd.init()
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters(), lr=0.01), net.named_parameters())
    state = hvd.elastic.TorchState(model=net, optimizer=optimizer, step=0)
    steps = []

    @hvd.elastic.run
    def train(state):
        while state.step < 9:
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            state.step += 1
            steps.append([state.step, hvd.rank(), hvd.size(), elastic.own_world().number])
            if steps[-1] == [3, 0, 3, 1]:
                tell(2, second, [1, 2])
                os.kill(os.getpid(), signal.SIGKILL)
            if steps[-1] == [3, 1, 3, 1]:
                raise hvd.HorovodInternalError("seen before the commit")
            if steps[-1] == [5, 0, 2, 2]:
                wait_for_file(folder / "3" / "keeps-0")
                tell(3, third, [1, 2, 3])
            state.commit()
        return "done"

    told = train(state)
    weights = hvd.allgather(torch.cat([p.detach().reshape(1, -1) for p in net.parameters()], 1))
    return {"told": told, "steps": steps, "equal": bool((weights == weights[0]).all()), "pid": os.getpid()}


def wait_for_file(path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


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


def messages():
    """A list of the messages that ask other ranks for something or answer them."""
    from trainmaster_train.horovod.link import Link

    sent, send = [], Link.send

    def counted(link, message, *arguments):
        if message.get("ready") or "do" in message:  # not that something takes long
            sent.append(message)
        return send(link, message, *arguments)

    Link.send = counted
    return sent


def repeats():
    """Loops as scripts have them: blocking operations that come round, others before them, between and after."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ranks = size * (size + 1) // 2
    told = {"wrong": []}

    def check(name, found, expected):
        if found != expected:
            told["wrong"].append([name, found, expected])

    sent = messages()
    for turn in range(60):
        # One with a name, one in place, one without a name; each is right, whoever is how far.
        check(
            "named", hvd.allreduce(torch.tensor([rank + 1.0 + turn]), op=hvd.Sum, name="x").item(), ranks + size * turn
        )
        value = torch.full((1000,), float(rank))
        check("in place", hvd.allreduce_(value, op=hvd.Max, name="y")[0].item(), size - 1.0)
        check("unnamed", hvd.allreduce(torch.tensor(turn)).item(), turn)
        if turn == 29:
            sent.clear()
        if turn == 39:
            told["messages in ten turns"] = len(sent)
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
    return told


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
    told = [refused(hvd.allreduce, torch.ones(3 + hvd.rank() // 2), name="x")]
    sums = [hvd.allreduce(torch.ones(3), op=hvd.Sum, name="x")[0].item() for _ in range(10)]
    return [*told, sums == [hvd.size()] * 10]


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
