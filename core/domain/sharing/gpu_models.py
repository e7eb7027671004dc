"""GPU model names: normalization, and which models a user's ``gpu_type`` accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
