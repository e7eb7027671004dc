"""Which device a part of a GPU goes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.domain.sharing.gpus import WHOLE_GPU, after_part, device_for_part, in_order_of_size, room_for_parts
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest

SHARES = st.lists(st.integers(0, 999), max_size=5).map(lambda left: tuple(sorted(left)))


def test_a_part_goes_where_it_leaves_the_least() -> None:
    assert device_for_part((700, 500, 450), 450) == 2
    assert device_for_part((700, 500, 400), 450) == 1
    assert device_for_part((400, 300), 450) is None


def test_larger_parts_are_dealt_out_first_and_equal_ones_in_rank_order() -> None:
    assert in_order_of_size([200, 500, 200, 900]) == [3, 1, 0, 2]


@given(SHARES, st.integers(1, 999))
def test_the_planner_and_who_knows_the_devices_see_the_same_left(shares: tuple[int, ...], part: int) -> None:
    after, opened = after_part(shares, part)
    at = device_for_part(shares, part)
    devices = [*shares, WHOLE_GPU] if at is None else list(shares)
    devices[len(shares) if at is None else at] -= part
    assert opened == (at is None)
    assert after == tuple(sorted(devices))


@given(SHARES, st.integers(0, 3), st.integers(1, 999))
def test_as_many_equal_parts_fit_as_are_counted(shares: tuple[int, ...], whole: int, part: int) -> None:
    taken = 0
    room = room_for_parts(shares, whole, part)
    while True:
        shares_then, opened = after_part(shares, part)
        if opened > whole:
            break
        shares, whole, taken = shares_then, whole - opened, taken + 1
    assert taken == room


def test_a_gang_with_parts_and_servers_apart_survives_json_and_others_keep_their_shape() -> None:
    plain = Gang((GangRole("worker", 2, ResourceRequest(1, 1, 1)),))
    assert set(plain.to_json()) == {"roles", "select", "topology"}
    assert plain.to_json()["roles"] == [["worker", 2, 1, 1, 1, []]]
    gang = Gang(
        (GangRole("ps", 2, ResourceRequest(1, 1)), GangRole("worker", 2, ResourceRequest(1, 1, 0, ("T4",), 250), 4)),
        servers="apart",
        spread_servers=True,
    )
    assert Gang.from_json(gang.to_json()) == gang
    assert gang.gpu_milli == 500
    assert len({gang.shape(), plain.shape()}) == 2
    amounts = Amounts(1, 1, {"T4": 1}, {"T4": (250, 500)})
    assert Amounts.from_json(amounts.to_json()) == amounts
