"""``DistributedOptimizer`` in all its ways."""

from __future__ import annotations

import torch
import trainmaster_train.horovod.torch as hvd

from scenarios.models import data, model, train, weights
from scenarios.trying import refused


def optimizers():
    """The same training in many ways; the test computes what one process with all data would get."""
    hvd.init()
    rank = hvd.rank()
    results = {}

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
        results[name] = train(net, optimizer, rank)
    net, optimizer = made(backward_passes_per_step=2)
    results["passes"] = train(net, optimizer, rank, passes=2)
    results["class"] = [type(optimizer).__name__, isinstance(optimizer, torch.optim.Adam)]
    net, optimizer = made()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(net, optimizer, rank, steps=1)
    schedule.step()
    results["rate"] = optimizer.param_groups[0]["lr"]

    # Clipping between the two.
    x, y = data(rank)
    optimizer.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    results["too early"] = refused(optimizer.zero_grad)
    optimizer.synchronize()
    gradient = net[0].weight.grad.clone()
    results["synchronized"] = torch.equal(hvd.broadcast(gradient, 1), gradient)
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
    results["dynamic"] = extra.tolist()

    # More passes than were announced.
    net(x).sum().backward()
    results["too many"] = refused(net(x).sum().backward)
    optimizer.synchronize()

    # The state of the one that has some.
    net = model()
    inner = torch.optim.Adam(net.parameters(), lr=0.1 if rank == 0 else 0.7)
    if rank == 0:
        train(net, inner, rank, steps=2)
    hvd.broadcast_optimizer_state(inner, root_rank=0)
    state = inner.state_dict()
    results["state"] = [
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
    results["closure"] = weights(net)

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
        results[f"embedding {as_dense}"] = (before - table.weight.detach()).round(decimals=4).tolist()

    # Adasum of ranks that agree is what each would do alone.
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), op=hvd.Adasum)
    results["adasum"] = train(net, optimizer, 0)
    net = model()
    results["alone"] = train(net, torch.optim.SGD(net.parameters(), lr=0.1), 0)

    net = model()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    named = list(net.named_parameters())
    results["doubled"] = refused(hvd.DistributedOptimizer, plain, [*named, named[0]])
    results["unnamed"] = refused(hvd.DistributedOptimizer, plain, named[:1])
    results["no pairs"] = refused(hvd.DistributedOptimizer, plain, net.parameters())
    results["factor"] = refused(hvd.DistributedOptimizer, plain, named, op=hvd.Sum, gradient_predivide_factor=2.0)
    return results
