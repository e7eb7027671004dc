"""Validation of a script's arguments before anything is written: each error is one sentence that names the argument."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any, List, Optional, Set, Tuple, Union

from trainmaster_train.arguments import shown, whole_number
from trainmaster_train.context import current

_LARGEST_STEP = 10**18 - 1  # the number of digits that a folder's name may have


def checked_step(step: Any) -> int:
    """``step`` as a number for a checkpoint's folder.

    Raises:
        ValueError: it is not a whole number, or out of range.
    """
    number = whole_number("step", step)
    if number < 0:
        raise ValueError(f"step: {number} is negative")
    if number > _LARGEST_STEP:
        raise ValueError(f"step: {number} is too large; at most 18 digits")
    return number


def checked_directory(directory: Optional[Union[str, Path]]) -> Path:
    """The folder of all checkpoints: the job's own when ``None``.

    Raises:
        ValueError: it is not a path.
    """
    if directory is None:
        return current().checkpoint_dir
    try:
        return Path(directory)
    except TypeError:
        raise ValueError(f"directory: {shown(directory)} is not a path; give the folder of all checkpoints") from None


def check_state(state: Any) -> None:
    """Check that :func:`trainmaster_train.checkpoint.load_checkpoint` can read a state back.

    Otherwise only the restart that needs it would fail.

    Raises:
        ValueError: names the first value, by its keys, that is not a tensor, number, text, or list or dict of them.
    """
    import torch

    plain = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
    visited: Set[int] = set()
    pending: List[Tuple[str, Any]] = [("state", state)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, torch.Tensor) or type(value) in plain or id(value) in visited:
            continue
        visited.add(id(value))
        if type(value) in (dict, OrderedDict):
            pending += [(f"the key {key!r} of {place}", key) for key in value if type(key) not in plain]
            pending += [(f"{place}[{key!r}]", inner) for key, inner in reversed(list(value.items()))]
        elif type(value) in (list, tuple):
            pending += [(f"{place}[{number}]", inner) for number, inner in reversed(list(enumerate(value)))]
        elif not _round_trips(value):
            raise ValueError(f"{place} is a {type(value).__name__}: {_advice(value)}")


def _round_trips(value: Any) -> bool:
    """Whether torch can write and read it, which depends on torch's version and on ``add_safe_globals``."""
    import torch

    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # noqa: BLE001 (a class's own pickling may raise anything)
        return False
    return True


def _advice(value: Any) -> str:
    if hasattr(value, "state_dict"):
        return "save its state_dict()"
    if hasattr(value, "tolist"):
        return "it cannot be read back without running code; save torch.as_tensor() or tolist() of it"
    return "it cannot be read back without running code; save tensors, numbers, texts, and lists and dicts of them"
