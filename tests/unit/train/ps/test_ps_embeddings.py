"""Tables: rows alone travel, and move as they would in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.ps import NonFiniteGradientError, Options, ParameterServerError  # noqa: E402

from tests.unit.train.ps.loopback import Cluster, values_of  # noqa: E402

ROWS = 23


class Bag(torch.nn.Module):
    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table = torch.nn.EmbeddingBag(ROWS, 4, sparse=sparse, mode="sum")
        self.last = torch.nn.Linear(4, 2)

    def forward(self, indices: Any) -> Any:
        return self.last(self.table(indices))


def loss_of(model: Any, indices: Any) -> Any:
    return model(indices).square().mean()


def train(model: Any, update: Any, batches: list[Any]) -> None:
    for indices in batches:
        update.zero_grad()
        loss_of(model, indices).backward()
        update.step()


BATCHES = [torch.tensor([[0, 1], [1, 22]]), torch.tensor([[1, 5], [9, 9]]), torch.tensor([[22, 0], [7, 3]])]


@pytest.mark.parametrize("ps", [1, 2, 3])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        lambda model: torch.optim.Adagrad(model.parameters(), lr=0.5, initial_accumulator_value=0.2),
    ],
    ids=["SGD", "Adagrad"],
)
def test_rows_move_as_torch_moves_those_of_sparse_gradients(
    cluster: Callable[..., Cluster], optimizer: Callable[[Any], Any], ps: int
) -> None:
    model, servers = cluster(ps, make=Bag, optimizer=optimizer).join()
    alone = Bag()

    train(model, servers, BATCHES)
    with torch.sparse.check_sparse_tensor_invariants(False):  # torch's own Adagrad warns unless told
        train(alone, optimizer(alone), BATCHES)

    servers.pull(tables=True)
    torch.testing.assert_close(values_of(model), values_of(alone))


def test_adam_moves_the_touched_rows_alone(cluster: Callable[..., Cluster]) -> None:
    def adam(model: Any) -> Any:
        return torch.optim.Adam(model.parameters(), lr=0.1)

    model, servers = cluster(2, make=Bag, optimizer=adam).join()
    before = Bag().table.weight.detach()

    train(model, servers, BATCHES[:1] * 2)

    servers.pull(tables=True)
    moved = (model.table.weight.detach() != before).any(dim=1)
    assert moved.nonzero().flatten().tolist() == [0, 1, 22]
    # Adam's first steps are about as long as its learning rate.
    assert torch.allclose((model.table.weight.detach() - before)[moved].abs(), torch.tensor(0.2), atol=0.08)


def test_a_forward_pass_reads_what_others_pushed(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2, make=Bag, workers=2)
    model, servers = job.join(0)
    other, observer = job.join(1)
    observer.prefetch(other.table, torch.tensor([3]))
    train(model, servers, BATCHES)

    observer.pull()

    with torch.no_grad():
        # Row 3 was asked for before it moved; the rest is fetched now.
        stale, wanted = other(torch.tensor([[3]])), model(torch.tensor([[3]]))
        assert not torch.equal(stale, wanted)
        assert torch.equal(other(torch.tensor([[3, 22, 0]])), model(torch.tensor([[3, 22, 0]])))
    assert not torch.equal(other.table.weight[1], model.table.weight[1]), "nobody asked for row 1 here"


def test_prefetched_rows_are_there_and_missing_ones_are_fetched(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster(2, make=Bag).join()
    alone = Bag()
    update = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)

    for indices in BATCHES[:1] * 3:
        servers.prefetch(model.table, indices[0])
        train(model, servers, [indices])
        train(alone, update, [indices])

    servers.pull(tables=True)
    touched = BATCHES[0].unique()
    torch.testing.assert_close(model.table.weight[touched], alone.table.weight[touched])


def test_synchronous_workers_share_rows(cluster: Callable[..., Cluster]) -> None:
    from tests.unit.train.ps.loopback import together

    def sgd(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.5)

    job = cluster(2, Options(mode="sync"), make=Bag, workers=2, optimizer=sgd)
    members = [job.join(0), job.join(1)]
    together(
        lambda: train(*members[0], [BATCHES[0], BATCHES[1]]),
        lambda: train(*members[1], [BATCHES[1], BATCHES[2]]),
    )
    alone = Bag()
    update = sgd(alone)
    for first, second in ((0, 1), (1, 2)):
        update.zero_grad()
        ((loss_of(alone, BATCHES[first]) + loss_of(alone, BATCHES[second])) / 2).backward()
        update.step()

    for model, servers in members:
        servers.pull(tables=True)
        torch.testing.assert_close(values_of(model), values_of(alone))


def test_what_is_wrong_with_a_row_is_named(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster(1, make=Bag).join()

    with pytest.raises(IndexError, match=r"`table.weight` has 23 rows; the input asks for 3 to 23"):
        model(torch.tensor([[3, 23]]))
    with pytest.raises(ParameterServerError, match="takes an Embedding or EmbeddingBag of the model"):
        servers.prefetch(model.last, torch.tensor([1]))
    (model(torch.tensor([[1]])).sum() * float("inf")).backward()
    model.last.weight.grad = model.last.bias.grad = None
    with pytest.raises(NonFiniteGradientError, match=r"worker 0, own step 0, update 0: the gradient of `table.weight`"):
        servers.step()


def test_a_table_that_something_else_uses_is_named(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster(1, make=Bag).join()
    model.table.weight.grad = torch.ones(ROWS, 4)

    with pytest.raises(ParameterServerError, match=r"`table.weight` is dense.*sparse=False"):
        servers.step()
