"""Usage of resources and its cost: prices with a time from which they count, and exact sums over allocations.

Money is in millionths of the platform's currency, and sums are integers until they are shown, so that no order of
adding changes a result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, Literal

Resource = Literal["gpu", "cpu", "memory"]  # per GPU, core and GiB
RESOURCES: Final[tuple[Resource, ...]] = ("gpu", "cpu", "memory")
MICROS: Final = 1_000_000

_MICROSECOND: Final = timedelta(microseconds=1)
_HOUR_US: Final = 3_600_000_000
_MILLI: Final = 1_000
_GIB: Final = 2**30
# Costs are summed in micros x microseconds x thousandths x bytes, so that all three resources have one denominator.
_COST_DENOMINATOR: Final = _HOUR_US * _MILLI * _GIB


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one unit of ``resource`` for one hour.

    ``gpu_model``: of a GPU of this model; empty: of any. ``node_selector``: on nodes with these labels; empty: on any.
    """

    resource: Resource
    micros_per_hour: int
    effective_from: datetime
    gpu_model: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()

    def applies_to(self, gpu_model: str | None, labels: Mapping[str, str]) -> bool:
        if self.gpu_model and self.gpu_model != gpu_model:
            return False
        return all(labels.get(key) == value for key, value in self.node_selector)

    @property
    def specificity(self) -> tuple[int, bool]:
        """The price with the larger one applies: more labels first, then a GPU model."""
        return len(self.node_selector), bool(self.gpu_model)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Resources of a replica on a node from ``start`` to ``end``, which is later. ``gpu_milli``: of all its GPUs.

    ``lost_from``: work since then was lost with the end of its attempt; ``None``: none was. Of ``gpu_samples`` of its
    GPUs' utilisation ``idle_gpu_samples`` showed an idle GPU.
    """

    start: datetime
    end: datetime
    node: str
    gpu_model: str | None
    gpu_milli: int
    cpu_milli: int
    memory_bytes: int
    lost_from: datetime | None = None
    gpu_samples: int = 0
    idle_gpu_samples: int = 0


@dataclass(frozen=True, slots=True)
class _Rates:
    """Micros per hour of a unit of each resource."""

    gpu: int
    cpu: int
    memory: int

    def cost(self, allocation: Allocation, duration_us: int) -> int:
        """In units of 1 / ``_COST_DENOMINATOR`` micros."""
        milli = self.gpu * allocation.gpu_milli + self.cpu * allocation.cpu_milli
        return duration_us * (milli * _GIB + self.memory * allocation.memory_bytes * _MILLI)


class PriceList:
    """All prices. ``labels``: of each node, by its name; a node that is not there has none."""

    def __init__(self, prices: Iterable[Price], labels: Mapping[str, Mapping[str, str]]) -> None:
        self._prices = list(prices)
        self._labels = labels
        self._rates: dict[tuple[str, str | None], tuple[list[datetime], list[_Rates]]] = {}

    def rates(self, node: str, gpu_model: str | None) -> tuple[Sequence[datetime], Sequence[_Rates]]:
        """The times from which the rates of the second list apply; before the first time all is free."""
        found = self._rates.get((node, gpu_model))
        if found is None:
            labels = self._labels.get(node, {})
            applicable = [price for price in self._prices if price.applies_to(gpu_model, labels)]
            times = sorted({price.effective_from for price in applicable})
            found = times, [_rates_at(applicable, at) for at in times]
            self._rates[node, gpu_model] = found
        return found

    def __bool__(self) -> bool:
        return bool(self._prices)

    def micros_per_hour(self, allocation: Allocation) -> int:
        """What ``allocation`` costs per hour at its start."""
        times, rates = self.rates(allocation.node, allocation.gpu_model)
        effective = bisect_right(times, allocation.start)
        return _rounded(rates[effective - 1].cost(allocation, _HOUR_US)) if effective else 0


def _rates_at(prices: Sequence[Price], at: datetime) -> _Rates:
    def rate(resource: Resource) -> int:
        effective = [price for price in prices if price.resource == resource and price.effective_from <= at]
        best = max(effective, key=lambda price: (price.specificity, price.effective_from), default=None)
        return best.micros_per_hour if best is not None else 0

    return _Rates(rate("gpu"), rate("cpu"), rate("memory"))


@dataclass(slots=True)
class ResourceTotals:
    """Sums over allocations: thousandths of a GPU and of a core, and bytes, each times microseconds."""

    gpu: int = 0
    cpu: int = 0
    memory: int = 0
    cost: int = 0
    lost_gpu: int = 0
    lost_cost: int = 0
    idle_gpu: int = 0
    idle_cost: int = 0

    def add(self, other: ResourceTotals) -> None:
        self.gpu += other.gpu
        self.cpu += other.cpu
        self.memory += other.memory
        self.cost += other.cost
        self.lost_gpu += other.lost_gpu
        self.lost_cost += other.lost_cost
        self.idle_gpu += other.idle_gpu
        self.idle_cost += other.idle_cost

    @property
    def gpu_hours(self) -> float:
        return self.gpu / _MILLI / _HOUR_US

    @property
    def cpu_hours(self) -> float:
        return self.cpu / _MILLI / _HOUR_US

    @property
    def memory_gib_hours(self) -> float:
        return self.memory / _GIB / _HOUR_US

    @property
    def lost_gpu_hours(self) -> float:
        return self.lost_gpu / _MILLI / _HOUR_US

    @property
    def idle_gpu_hours(self) -> float:
        return self.idle_gpu / _MILLI / _HOUR_US

    @property
    def cost_micros(self) -> int:
        return _rounded(self.cost)

    @property
    def lost_cost_micros(self) -> int:
        return _rounded(self.lost_cost)

    @property
    def idle_cost_micros(self) -> int:
        return _rounded(self.idle_cost)


def _rounded(cost: int) -> int:
    """To the nearest micro, half to even."""
    whole, rest = divmod(cost, _COST_DENOMINATOR)
    return whole + (2 * rest > _COST_DENOMINATOR or (2 * rest == _COST_DENOMINATOR and whole % 2 == 1))


def allocation_totals(
    allocation: Allocation, prices: PriceList, cuts: Sequence[datetime]
) -> Iterable[tuple[int, ResourceTotals]]:
    """The totals of ``allocation`` in each period between two of the ``cuts``, with the period's number from 0.

    ``cuts``: at least two, in order; what lies before the first or behind the last one does not count.
    """
    first = max(0, bisect_right(cuts, allocation.start) - 1)
    times, rates = prices.rates(allocation.node, allocation.gpu_model)
    for period in range(first, len(cuts) - 1):
        start, end = max(allocation.start, cuts[period]), min(allocation.end, cuts[period + 1])
        if start >= end:
            if cuts[period] >= allocation.end:
                return
            continue
        yield period, _totals_between(allocation, start, end, times, rates)


def _totals_between(
    allocation: Allocation, start: datetime, end: datetime, times: Sequence[datetime], rates: Sequence[_Rates]
) -> ResourceTotals:
    duration_us = (end - start) // _MICROSECOND
    totals = ResourceTotals(
        gpu=allocation.gpu_milli * duration_us,
        cpu=allocation.cpu_milli * duration_us,
        memory=allocation.memory_bytes * duration_us,
        cost=_cost_between(allocation, start, end, times, rates),
    )
    if allocation.lost_from is not None and allocation.lost_from < end:
        lost_start = max(start, allocation.lost_from)
        totals.lost_gpu = allocation.gpu_milli * ((end - lost_start) // _MICROSECOND)
        totals.lost_cost = _cost_between(allocation, lost_start, end, times, rates)
    if allocation.idle_gpu_samples and totals.gpu:
        # Samples are of the whole allocation: of each part of it as much is idle.
        idle, samples = allocation.idle_gpu_samples, allocation.gpu_samples
        gpus_alone = replace(allocation, cpu_milli=0, memory_bytes=0)
        totals.idle_gpu = totals.gpu * idle // samples
        totals.idle_cost = _cost_between(gpus_alone, start, end, times, rates) * idle // samples
    return totals


def _cost_between(
    allocation: Allocation, start: datetime, end: datetime, times: Sequence[datetime], rates: Sequence[_Rates]
) -> int:
    cost = 0
    for number in range(max(0, bisect_right(times, start) - 1), len(times)):
        since = max(start, times[number])
        until = min(end, times[number + 1]) if number + 1 < len(times) else end
        if since < until:
            cost += rates[number].cost(allocation, (until - since) // _MICROSECOND)
    return cost


def micros_of(amount: Decimal) -> int:
    """``Decimal("2.5")`` as 2500000; rounds half to even."""
    return int((amount * MICROS).to_integral_value(ROUND_HALF_EVEN))


def amount_of(micros: int) -> Decimal:
    """2500000 as ``Decimal("2.5")``, without zeros behind the digits that count, but with at least two."""
    exact = (Decimal(micros) / MICROS).normalize()
    return exact if -int(exact.as_tuple().exponent) >= 2 else exact.quantize(Decimal("0.01"))
