"""Workers and ps over the loopback: what comes out is what one process would have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options, ParameterServerError  # noqa: E402

from tests.unit.train.ps.loopback import Cluster, loss_of, make_model, step, together, values_of  # noqa: E402

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.1),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters(), lr=0.01),
}


def alone(make: Callable[[], Any], optimizer: Callable[[Any], Any], steps: int, workers: int = 1) -> Any:
    """The same training in one process, each step on the mean of the workers' batches."""
    model = make()
    update = optimizer(model)
    for number in range(steps):
        update.zero_grad()
        for worker in range(workers):
            (loss_of(model, number * workers + worker) / workers).backward()
        update.step()
    return model


@pytest.mark.parametrize("ps", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_worker_learns_what_one_process_learns(cluster: Callable[..., Cluster], name: str, ps: int) -> None:
    model, servers = cluster(ps, optimizer=OPTIMIZERS[name]).join()

    for number in range(8):
        step(model, servers, number)

    torch.testing.assert_close(values_of(model), values_of(alone(make_model, OPTIMIZERS[name], 8)))
    assert servers.versions == (8,) * ps


@pytest.mark.parametrize("ps", [1, 2])
def test_synchronous_workers_learn_what_one_process_learns_from_all_batches(
    cluster: Callable[..., Cluster], ps: int
) -> None:
    job = cluster(ps, Options(mode="sync"), workers=3, optimizer=OPTIMIZERS["Adam"])
    members = [job.join(rank) for rank in range(3)]

    def train(rank: int) -> None:
        for number in range(6):
            step(*members[rank], number * 3 + rank)

    together(*(lambda rank=rank: train(rank) for rank in range(3)))

    wanted = values_of(alone(make_model, OPTIMIZERS["Adam"], 6, workers=3))
    for model, servers in members:
        torch.testing.assert_close(values_of(model), wanted)
        assert servers.version == 6
        assert servers.staleness.largest == 0


def test_gradients_that_leave_during_the_backward_pass_are_the_same(cluster: Callable[..., Cluster]) -> None:
    def make() -> Any:
        torch.manual_seed(3)
        # Blocks of both layers, and one that both share.
        return torch.nn.Sequential(torch.nn.Linear(8, 40_000), torch.nn.ReLU(), torch.nn.Linear(40_000, 3))

    def optimizer(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.001)

    model, servers = cluster(2, Options(overlap=True), make=make, optimizer=optimizer).join()

    for number in range(3):
        step(model, servers, number)

    torch.testing.assert_close(values_of(model), values_of(alone(make, optimizer, 3)))


def test_with_overlap_a_clipped_or_second_gradient_is_an_error(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster(1, Options(overlap=True)).join()
    loss_of(model, 1).backward()
    with pytest.raises(ParameterServerError, match="a second gradient of"):
        loss_of(model, 2).backward()

    servers.zero_grad()
    loss_of(model, 1).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
    with pytest.raises(ParameterServerError, match=r"changed after it was sent \(clipped"):
        servers.step()

    step(model, servers, 3)
    assert servers.version == 1


def test_without_overlap_gradients_may_be_clipped_and_accumulated(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster(1, optimizer=OPTIMIZERS["Adagrad"]).join()
    other = make_model()
    update = OPTIMIZERS["Adagrad"](other)
    for member, apply in ((model, servers.step), (other, update.step)):
        for number in (1, 2):
            loss_of(member, number).backward()
        torch.nn.utils.clip_grad_norm_(member.parameters(), 0.5)
        apply()

    torch.testing.assert_close(values_of(model), values_of(other))


def test_prefetched_values_are_one_own_update_old(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster(1, Options(prefetch=True)).join()
    first = values_of(model).clone()

    step(model, servers, 1)
    assert torch.equal(values_of(model), first)
    step(model, servers, 2)
    assert not torch.equal(values_of(model), first)
    assert servers.pull() == 2
    assert (servers.staleness.pushes, servers.staleness.largest) == (2, 1)


def test_a_scheduler_on_the_chiefs_optimizer_is_followed(cluster: Callable[..., Cluster]) -> None:
    def plain(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.2)

    job = cluster(2, optimizer=plain)
    model, servers = job.join()
    scheduler = torch.optim.lr_scheduler.StepLR(servers.optimizer, step_size=1, gamma=0.5)
    other = make_model()
    update = plain(other)
    same = torch.optim.lr_scheduler.StepLR(update, step_size=1, gamma=0.5)
    for number in range(4):
        step(model, servers, number)
        scheduler.step()
        update.zero_grad()
        loss_of(other, number).backward()
        update.step()
        same.step()

    torch.testing.assert_close(values_of(model), values_of(other))


def test_several_dtypes_train_together(cluster: Callable[..., Cluster]) -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.first = torch.nn.Linear(8, 16, dtype=torch.float64)
            self.last = torch.nn.Linear(16, 3, dtype=torch.bfloat16)

        def forward(self, inputs: Any) -> Any:
            return self.last(self.first(inputs.double()).bfloat16()).float()

    def optimizer(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    model, servers = cluster(2, make=Mixed, optimizer=optimizer).join()

    for number in range(3):
        step(model, servers, number)

    torch.testing.assert_close(values_of(model), values_of(alone(Mixed, optimizer, 3)), atol=0.004, rtol=0.01)
    assert model.last.weight.dtype is torch.bfloat16


def test_a_model_that_was_moved_is_an_error_and_not_silently_left_behind(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster().join()
    model.double()

    with pytest.raises(ParameterServerError, match=r"`0.weight` was moved"):
        servers.step()


def test_only_optimizers_that_work_on_parts_of_tensors_are_taken(cluster: Callable[..., Cluster]) -> None:
    with pytest.raises(ParameterServerError, match="LBFGS is none of torch's SGD, Adam"):
        cluster(optimizer=lambda model: torch.optim.LBFGS(model.parameters())).join()
