from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.ps import ParameterServerError  # noqa: E402
from trainmaster_train.ps.layout import BLOCK_BYTES, difference, layout_of  # noqa: E402


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def embedding(rows: int, sparse: bool = True) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Embedding(rows, 4, sparse=sparse), torch.nn.Linear(4, 2))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_value_lies_on_one_ps_and_the_shards_are_equal(count: int) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(1000, 700), torch.nn.Linear(700, 1), torch.nn.Embedding(101, 4, sparse=True)
    )
    layout = layout_of(model, adam(model))
    blocks = [layout.blocks(ps, count) for ps in range(count)]

    covered = sorted((block.begin, block.end) for own in blocks for block in own)
    assert covered[0][0] == 0
    assert covered[-1][1] == 700 * 1000 + 700 + 701
    assert all(left[1] == right[0] for left, right in pairwise(covered))
    assert all((end - begin) * 4 <= BLOCK_BYTES for begin, end in covered)
    assert sum(layout.tables[0].rows_of(ps, count) for ps in range(count)) == 101
    sizes = [layout.bytes_of(ps, count) for ps in range(count)]
    # One element of the slab, and one row of the table.
    assert max(sizes) - min(sizes) <= 4 + 16


def test_dtypes_and_groups_lie_apart() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).half(), torch.nn.Linear(4, 4))
    first, half, last = model
    optimizer = torch.optim.Adam([{"params": [*first.parameters(), *half.parameters()]}, {"params": last.parameters()}])

    slabs = layout_of(model, optimizer).slabs

    assert [(slab.group, slab.dtype) for slab in slabs] == [(0, torch.float32), (0, torch.float16), (1, torch.float32)]


def test_tied_and_frozen_parameters_are_counted_once_and_never() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)

    assert layout_of(model, adam(model)).slabs[0].size == 16 + 4 + 4


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (lambda: embedding(6), "`0.weight` is 5×4 here and 6×4 there"),
        (lambda: embedding(5, sparse=False), "`0.weight` is sparse: True here and sparse: False there"),
        (lambda: embedding(5).double(), "`0.weight` is of dtype torch.float32 here and of dtype torch.float64 there"),
        (lambda: embedding(5)[:1], "`1.weight` is not there"),
        (lambda: torch.nn.Sequential(*embedding(5), torch.nn.Linear(2, 2)), "`2.weight` is not here"),
    ],
)
def test_the_first_difference_of_two_models_is_named(other: object, sentence: str) -> None:
    assert callable(other)
    mine, theirs = embedding(5), other()

    found = difference(layout_of(mine, adam(mine)).signature, layout_of(theirs, adam(theirs)).signature)

    assert found == sentence


def test_a_difference_of_the_optimizers_is_named() -> None:
    model = torch.nn.Linear(2, 2)
    one = layout_of(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)).signature
    other = layout_of(model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8)).signature

    # The learning rate is the chief's.
    assert difference(one, other) == "the optimizer's momentum (group 0) is 0.9 here and 0.8 there"
    assert difference(one, other, settings=False) is None
    assert difference(one, layout_of(model, adam(model)).signature) == "the optimizer is SGD here and Adam there"


def test_what_cannot_be_trained_is_refused_with_its_name() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with pytest.raises(ParameterServerError, match="not the model's"):
        layout_of(model, adam(other))
    with pytest.raises(ParameterServerError, match=r"lacks the model's parameter bias"):
        layout_of(model, torch.optim.Adam([model.weight]))
    with pytest.raises(ParameterServerError, match="no parameter that requires a gradient"):
        layout_of(model.requires_grad_(False), adam(model))
    limited = torch.nn.Sequential(torch.nn.Embedding(3, 2, max_norm=1.0, sparse=True))
    with pytest.raises(ParameterServerError, match=r"0.weight: max_norm changes rows"):
        layout_of(limited, adam(limited))
