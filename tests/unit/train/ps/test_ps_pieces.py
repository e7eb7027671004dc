"""Values that come in several messages while the update is still being made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options, layout  # noqa: E402

from tests.unit.train.ps.loopback import Cluster, make_model, step, together, values_of  # noqa: E402
from tests.unit.train.ps.test_ps_training import OPTIMIZERS, alone  # noqa: E402


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of the tests, of 603 values, is 38 blocks in 10 pieces."""
    monkeypatch.setattr(layout, "BLOCK_BYTES", 64)
    monkeypatch.setattr(layout, "PIECE_BYTES", 256)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "sent"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_in_pieces_is_the_same_update(cluster: Callable[..., Cluster], name: str, *, shared: bool) -> None:
    model, servers = cluster(1, Options(shared_memory=shared), optimizer=OPTIMIZERS[name]).join()

    for number in range(5):
        step(model, servers, number)

    torch.testing.assert_close(values_of(model), values_of(alone(make_model, OPTIMIZERS[name], 5)))


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "sent"])
@pytest.mark.parametrize(
    "options",
    [Options(prefetch=True), Options(max_staleness=0), Options(mode="sync"), Options(mode="sync", backup_workers=1)],
    ids=["prefetch", "bound", "sync", "backup"],
)
def test_all_workers_end_with_the_values_of_the_ps(
    cluster: Callable[..., Cluster], options: Options, *, shared: bool
) -> None:
    job = cluster(2, replace(options, shared_memory=shared), workers=2)
    members = [job.join(rank) for rank in range(2)]

    def train(rank: int) -> None:
        model, servers = members[rank]
        for number in range(6):
            step(model, servers, number)

    together(*(partial(train, rank) for rank in range(2)))

    # An update is on its way until its worker asks for values again: only what is asked for after all are in is the
    # end.
    for _ in range(2):
        for _, servers in members:
            servers.pull()
    assert torch.equal(values_of(members[0][0]), values_of(members[1][0]))
    for ps, server in enumerate(job.servers):
        held = torch.cat(list(server._shard.values))
        begin, end = layout.slice_of(603, ps, 2)
        assert torch.equal(values_of(members[0][0])[begin:end], held)


def test_pieces_cover_all_blocks_and_stay_few() -> None:
    model = torch.nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    whole = layout.layout_of(model, optimizer)
    blocks = whole.blocks(0, 1)

    pieces = layout.pieces(blocks, whole.slabs)

    assert len(blocks) == 62_500
    assert len(pieces) <= 101
    assert [number for piece in pieces for number in piece] == list(range(len(blocks)))
