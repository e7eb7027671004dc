"""Costs of allocations: prices that change, the most specific price, periods, lost work, and exact sums."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from core.domain.sharing.costs import (
    Allocation,
    Price,
    PriceList,
    ResourceTotals,
    allocation_totals,
    amount_of,
    micros_of,
)

T0 = datetime(2026, 11, 1, tzinfo=UTC)
H = timedelta(hours=1)


def allocated(start: float, end: float, **fields: object) -> Allocation:
    """From hour ``start`` to hour ``end``: two H100 of node-a, if nothing else is given."""
    resources = {"node": "node-a", "gpu_model": "H100", "gpu_milli": 2000, "cpu_milli": 4000, "memory_bytes": 2**30}
    return Allocation(T0 + start * H, T0 + end * H, **{**resources, **fields})  # type: ignore[arg-type]


def gpu(per_hour: str, from_hour: float = 0, model: str = "", **labels: str) -> Price:
    return Price("gpu", micros_of(Decimal(per_hour)), T0 + from_hour * H, model, tuple(labels.items()))


def cost(allocation: Allocation, *prices: Price, labels: dict[str, dict[str, str]] | None = None) -> Decimal:
    whole = ResourceTotals()
    cuts = (T0 - 1000 * H, T0 + 1000 * H)
    for _, totals in allocation_totals(allocation, PriceList(prices, labels or {}), cuts):
        whole.add(totals)
    return amount_of(whole.cost_micros)


def test_a_price_counts_from_its_time_on() -> None:
    assert cost(allocated(0, 10)) == 0
    assert cost(allocated(0, 10), gpu("2.50")) == Decimal(50)
    assert cost(allocated(0, 10), gpu("2.50", 4)) == Decimal(30)  # nothing before
    assert cost(allocated(0, 10), gpu("2.50"), gpu("1", 4)) == Decimal(32)  # 4 h x 2 x 2.50 + 6 h x 2 x 1
    assert cost(allocated(-5, 0), gpu("2.50")) == 0


def test_the_most_specific_price_counts_also_where_a_general_one_is_newer() -> None:
    prices = [gpu("1"), gpu("3", model="H100"), gpu("2", 5), gpu("9", model="A100"), gpu("7", pool="fast")]
    assert cost(allocated(0, 10), *prices) == 60
    assert cost(allocated(0, 10, gpu_model="L4"), *prices) == 30  # 5 h x 2 x 1 + 5 h x 2 x 2
    assert cost(allocated(0, 10), *prices, labels={"node-a": {"pool": "fast"}}) == 140


def test_cores_memory_and_parts_of_a_gpu_have_their_prices() -> None:
    price = [gpu("8"), Price("cpu", micros_of(Decimal("0.1")), T0), Price("memory", micros_of(Decimal("0.01")), T0)]
    assert cost(allocated(0, 1, gpu_milli=250), *price) == Decimal("2.41")
    assert cost(allocated(0, 1, gpu_milli=0, gpu_model=None), *price) == Decimal("0.41")


def test_periods_share_an_allocation_and_lost_work_is_a_part_of_it() -> None:
    cuts = [T0, T0 + 24 * H, T0 + 48 * H, T0 + 72 * H]
    prices = PriceList([gpu("1")], {})
    found = dict(allocation_totals(allocated(20, 60, lost_from=T0 + 47 * H), prices, cuts))
    assert {number: totals.gpu_hours for number, totals in found.items()} == {0: 8.0, 1: 48.0, 2: 24.0}
    assert {number: totals.lost_gpu_hours for number, totals in found.items()} == {0: 0.0, 1: 2.0, 2: 24.0}
    assert [amount_of(totals.lost_cost_micros) for totals in found.values()] == [0, 2, 24]
    before_and_after = [list(allocation_totals(allocated(*span), prices, cuts)) for span in ((-9, 0), (72, 90))]
    assert before_and_after == [[], []]


def test_amounts_are_shown_with_at_least_two_digits() -> None:
    assert [str(amount_of(micros)) for micros in (0, 2_500_000, 1_234_567, 100_000_000)] == [
        "0.00",
        "2.50",
        "1.234567",
        "100.00",
    ]


moments = st.integers(0, 10 * 24 * 3600 * 1_000_000).map(lambda us: T0 + timedelta(microseconds=us))


@given(
    st.lists(st.tuples(moments, moments, st.integers(0, 8000), st.integers(1, 10**6)), max_size=8),
    st.lists(st.tuples(moments, st.integers(0, 10**8), st.sampled_from(["", "H100", "A100"])), max_size=6),
)
def test_the_sum_is_that_of_the_definition(
    allocations: list[tuple[datetime, datetime, int, int]], rows: list[tuple[datetime, int, str]]
) -> None:
    """Between two changes of anything, the cost is rate x time, by the price that a reader would pick."""
    prices = [Price("gpu", micros, at, model) for at, micros, model in rows]
    whole = ResourceTotals()
    exact = Fraction()
    cuts = [T0 + day * 24 * H for day in range(11)]
    for begin, end, milli, memory in allocations:
        if begin >= end:
            continue
        one = Allocation(begin, end, "node-a", "H100", milli, 0, memory)
        for _, totals in allocation_totals(one, PriceList(prices, {}), cuts):
            whole.add(totals)
        edges = sorted({begin, end, *(price.effective_from for price in prices if begin < price.effective_from < end)})
        for since, until in itertools.pairwise(edges):
            valid = [price for price in prices if price.effective_from <= since]
            own = [price for price in valid if price.gpu_model == "H100"] or [p for p in valid if not p.gpu_model]
            newest = max((price.effective_from for price in own), default=None)
            # Of two equal ones the first of the list counts.
            rate = next((price.micros_per_hour for price in own if price.effective_from == newest), 0)
            hours = Fraction((until - since) // timedelta(microseconds=1), 3_600_000_000)
            exact += rate * hours * Fraction(milli, 1000)
    assert whole.cost_micros == round(exact)
