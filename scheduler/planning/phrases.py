"""Phrases of which reasons are composed: amounts, lists, times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from core.domain.sharing.resources import ResourceRequest

# Appended to an amount that the user did not state.
DEFAULT: Final = " (the default where none is stated)"
_BINARY_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def gpus(count: int, models: Sequence[str]) -> str:
    """``8 GPUs of H100 or A100``."""
    noun = "GPU" if count == 1 else "GPUs"
    return f"{count} {noun} of {any_of(models)}" if models else f"{count} {noun}"


def gpu_text(wanted: ResourceRequest, models: Sequence[str] | None = None) -> str:
    """``8 GPUs of H100 or A100``; for a part of one device ``0.5 GPU of H100``."""
    models = wanted.gpu_models if models is None else models
    if not wanted.gpu_milli:
        return gpus(wanted.gpu_count, models)
    part = f"{part_of_gpu(wanted.gpu_milli)} GPU"
    return f"{part} of {any_of(models)}" if models else part


def part_of_gpu(milli: int) -> str:
    return f"{milli / 1000:g}"


def cpus(milli: int) -> str:
    amount = f"{milli / 1000:g}"
    return f"{amount} CPU" if milli == 1000 else f"{amount} CPUs"


def memory(count: int) -> str:
    for unit, name in _BINARY_UNITS:
        if abs(count) >= unit:
            return f"{count / unit:.3g} {name} of memory" if count % unit else f"{count // unit} {name} of memory"
    return f"{count} bytes of memory"


def cpu_text(wanted: ResourceRequest) -> str:
    """``2 CPUs``; a default amount is marked as such."""
    return cpus(wanted.cpu_milli) + (DEFAULT if "cpu" in wanted.default_amounts else "")


def memory_text(wanted: ResourceRequest) -> str:
    """``4 GiB of memory``; a default amount is marked as such."""
    return memory(wanted.memory_bytes) + (DEFAULT if "memory" in wanted.default_amounts else "")


def request(wanted: ResourceRequest, binding: Collection[str] = ()) -> str:
    """``8 GPUs of H100, 16 CPUs and 64 GiB of memory``; default amounts are left out.

    ``binding``: scarce resources among ``cpu`` and ``memory``; they are included in any case.
    """
    parts = [gpu_text(wanted)] if wanted.uses_gpu else []
    defaults = wanted.default_amounts
    if "cpu" not in defaults or "cpu" in binding:
        parts.append(cpu_text(wanted))
    if "memory" not in defaults or "memory" in binding:
        parts.append(memory_text(wanted))
    return all_of(parts or [cpus(wanted.cpu_milli), memory(wanted.memory_bytes)])


def binding(wanted: ResourceRequest, members: Callable[[ResourceRequest], int]) -> tuple[str, ...]:
    """Which of ``cpu`` and ``memory`` limits the number of ``members``: without it more would fit."""
    now = members(wanted)
    lighter = {"cpu": replace(wanted, cpu_milli=0), "memory": replace(wanted, memory_bytes=0)}
    return tuple(name for name, request in lighter.items() if members(request) > now)


def less(wanted: ResourceRequest, binding: Collection[str]) -> str:
    """What to ask for less of: ``less memory each (state `memory`, since the default binds)``."""
    if not binding:
        return "less each"
    defaults = [f"`{name}`" for name in binding if name in wanted.default_amounts]
    hint = f" (state {all_of(defaults)})" if defaults else ""
    return f"less {all_of(list(binding))} each{hint}"


def plural(noun: str, count: int) -> str:
    return noun if count == 1 or noun.endswith("s") else f"{noun}s"


def all_of(items: Sequence[str]) -> str:
    return _joined(items, "and")


def any_of(items: Sequence[str]) -> str:
    return _joined(items, "or")


def _joined(items: Sequence[str], word: str) -> str:
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {word} {items[-1]}"


def shortlist(items: Sequence[str], most: int = 3) -> str:
    """``a, b, c and 4 more``."""
    if len(items) <= most:
        return all_of(items)
    return f"{', '.join(items[:most])} and {len(items) - most} more"


def jobs(names: Sequence[str]) -> str:
    return f"{'job' if len(names) == 1 else 'jobs'} {shortlist(names, 2)}"


def about(at: datetime, now: datetime) -> str:
    """``about 14:20 UTC``; with the date if it is not today."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    return f"about {at:%H:%M} UTC" if at.date() == now.date() else f"about {at:%Y-%m-%d %H:%M} UTC"


def span(seconds: float) -> str:
    """``30 min``, ``1 h 30 min``, ``2 d``, ``45 s``: a setting, as exactly as it was written."""
    left, parts = round(seconds, 3), []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:g} {unit}")
    if left or not parts:
        parts.append(f"{left:g} s")
    return " ".join(parts)


def until(at: datetime | None, now: datetime, *, is_single: bool, is_likely: bool = False) -> str:
    """How long a job runs on, after its name: `` until about 14:20 UTC``; ``is_likely``: only an estimate."""
    if at is None:
        return f", whose {'end is' if is_single else 'ends are'} not known"
    if at <= now:
        return f", which {'should' if not is_likely else 'will probably'} end any moment"
    return f"{', probably' if is_likely else ''} until {about(at, now)}"


# Estimates are rounded to a grid that is coarser the farther off they are, so that a reason which still holds reads
# the same next time.
_GRID: Final = ((600.0, 60.0), (3600.0, 300.0), (6 * 3600.0, 900.0), (2 * 86400.0, 3600.0), (float("inf"), 6 * 3600.0))


def on_grid(left_s: float, now: datetime) -> datetime | None:
    """The moment ``left_s`` from now, rounded up to the grid; ``None`` beyond the last year that a date can have."""
    width = _width(left_s)
    try:
        at_s = (now + timedelta(seconds=left_s)).timestamp()
        return datetime.fromtimestamp(-(-at_s // width) * width, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def down_to_grid(at: datetime, now: datetime) -> datetime:
    """``at``, rounded down to the grid, but not to a minute before the present one."""
    widths = (_width((at - now).total_seconds()), _GRID[0][1])
    at_s, now_s = (moment.timestamp() // width * width for moment, width in zip((at, now), widths, strict=True))
    return datetime.fromtimestamp(max(at_s, now_s), UTC)


def _width(left_s: float) -> float:
    return next(width for limit, width in _GRID if left_s < limit)
