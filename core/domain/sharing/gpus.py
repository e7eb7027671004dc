"""GPU models and GPU sharing: which models a ``gpu_type`` accepts, and which device takes a fraction of a GPU.

Model names are normalized. Fractions are assigned by best fit, with the same rule in the planner and in the apply step.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

# A slice of a device as NVIDIA names it: ``A100-SXM4-40GB MIG 1g.5gb``, a seventh of the compute units and 5 GB.
_SLICED: Final = "mig"
_SLICE: Final = re.compile(r"[1-9]g")
_MAKERS: Final = ("nvidia", "amd", "intel", "tesla", "geforce", "instinct")


@lru_cache(maxsize=4096)
def normal_model(name: str) -> str:
    """The normalized name: ``NVIDIA A100-SXM4-80GB`` is ``a100-sxm4-80gb``, ``Tesla T4`` is ``t4``.

    Lower case, parts joined by ``-``, without the maker's name unless it is all there is.
    """
    parts = [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]
    while len(parts) > 1 and parts[0] in _MAKERS:
        parts.pop(0)
    return "-".join(parts)


@lru_cache(maxsize=65_536)
def accepts(requested: str, model: str) -> bool:
    """Whether a node's ``model`` satisfies the user's ``requested``, each in any spelling.

    All parts of the request must occur in the model as whole parts, in this order: ``A100`` and ``a100-80gb`` accept
    ``a100-sxm4-80gb``; ``h100`` does not accept ``h1000``. A MIG slice must be requested explicitly: ``1g.5gb``,
    ``mig-1g.5gb`` and ``a100-mig`` accept ``a100-sxm4-40gb-mig-1g-5gb``, ``a100`` does not.
    """
    wanted = normal_model(requested).split("-")
    there = normal_model(model).split("-")
    if _SLICED in there and not any(part == _SLICED or _SLICE.fullmatch(part) for part in wanted):
        return False
    parts = iter(there)
    return wanted != [""] and all(part in parts for part in wanted)


def accepted_models(requested: Iterable[str], present: Iterable[str]) -> tuple[str, ...]:
    """The ``present`` models that ``requested`` accepts, best first: in its order, then in that of ``present``."""
    known = tuple(present)
    return tuple(dict.fromkeys(model for wish in requested for model in known if accepts(wish, model)))


# Fractions are in thousandths of one device.
WHOLE_GPU: Final = 1000


def device_for_part(left: Sequence[int], gpu_milli: int) -> int | None:
    """Best fit: index in ``left`` (thousandths left on each shared device) of the device with the smallest remainder
    that takes ``gpu_milli``. ``None``: none has room, so that a whole device must be opened.

    Several fractions for one node are assigned in :func:`in_order`.
    """
    fitting = [(amount, at) for at, amount in enumerate(left) if amount >= gpu_milli]
    return min(fitting)[1] if fitting else None


def in_order_of_size(parts: Sequence[int]) -> list[int]:
    """The order of assignment (best-fit decreasing): indices of ``parts``, larger ones first; stable."""
    return sorted(range(len(parts)), key=lambda at: -parts[at])


def after_part(shares: tuple[int, ...], gpu_milli: int) -> tuple[tuple[int, ...], int]:
    """The remainders of the shared devices (ascending) after one more fraction by the same rule, and the number of
    newly opened devices (0 or 1).
    """
    at = bisect_left(shares, gpu_milli)
    opened = int(at == len(shares))
    remaining = list(shares) if opened else [*shares[:at], *shares[at + 1 :]]
    insort(remaining, (WHOLE_GPU if opened else shares[at]) - gpu_milli)
    return tuple(remaining), opened


def room_for_parts(shares: Iterable[int], whole: int, gpu_milli: int) -> int:
    """How many fractions of ``gpu_milli`` fit on these shared devices and ``whole`` unshared ones."""
    return sum(left // gpu_milli for left in shares) + whole * (WHOLE_GPU // gpu_milli)
