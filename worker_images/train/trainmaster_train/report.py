"""Reports progress and metrics to the platform: JSON lines, appended to a file that the runtime relays.

Outside the platform (no ``TRAINMASTER_REPORT_FILE``) every call does nothing. Reporting never stops a training: a file
that cannot be written costs one warning on stderr.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from typing import Any, Dict, Iterator, Mapping, Optional, Union

from trainmaster_train.arguments import shown

Number = Union[int, float]
_BINS_LIMIT = 512

_has_warned = False
has_reported_step = False  # by this process: reports without a step belong to the last reported one


def progress(step: int, steps: Optional[int] = None, *, epoch: Optional[int] = None, **metrics: Any) -> None:
    """Report that ``step`` of ``steps`` is done, with metrics such as ``loss=0.1``.

    Args:
        steps: total number of steps; ``None`` if unknown.
        metrics: numbers, or objects with ``item()`` (numpy and torch scalars). NaN and infinities are sent as the
            texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, because JSON has no such numbers.
    """
    global has_reported_step  # noqa: PLW0603 (the runtime knows one step of this process)
    line: Dict[str, Any] = {"kind": "progress", "step": _integer("step", step)}
    has_reported_step = True
    if steps is not None:
        line["steps"] = _integer("steps", steps)
    if epoch is not None:
        line["epoch"] = _integer("epoch", epoch)
    if metrics:
        line["metrics"] = plain_metrics(metrics)
    append(line)


def log(values: Mapping[str, Any], step: int) -> None:
    """Report metrics of ``step`` with arbitrary printable names, such as ``train/loss``.

    Args:
        values: numbers, as in ``progress``.
    """
    global has_reported_step  # noqa: PLW0603 (the same)
    line = {"kind": "progress", "step": _integer("step", step), "metrics": plain_metrics(values)}
    has_reported_step = True
    append(line)


def log_histogram(name: str, values: Any, step: int, *, bins: int = 30) -> None:
    """Report a histogram of ``values``: numbers, or an array or tensor of any shape. Non-finite values are left out.

    Raises:
        ValueError: ``bins`` is not from 1 to 512.
    """
    if not 1 <= bins <= _BINS_LIMIT:
        raise ValueError(f"bins is {bins}; give 1 to {_BINS_LIMIT}")
    numbers = [number for number in _flat(values) if math.isfinite(number)]
    if not numbers:
        return
    low, high = min(numbers), max(numbers)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for number in numbers:
        counts[min(bins - 1, int((number - low) / width))] += 1
    edges = [low + width * place for place in range(bins)] + [max(high, low + width * bins)]
    _log_object(name, "histogram", step, {"edges": edges, "counts": counts})


def log_image(name: str, file: bytes, step: int) -> None:
    """Report an image: the bytes of a PNG, JPEG, GIF or WebP file of at most 512 KiB; larger ones are dropped."""
    _log_object(name, "image", step, base64.b64encode(file).decode())


def log_text(name: str, text: str, step: int) -> None:
    """Report a text; it is truncated to 64 KiB."""
    _log_object(name, "text", step, text)


def _integer(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{name}: {shown(value)} is not a number") from error


def _log_object(name: str, kind: str, step: int, data: Any) -> None:
    entry = {"name": name, "kind": kind, "step": _integer("step", step), "data": data}
    append({"kind": "metrics", "objects": [entry]})


def _flat(values: Any) -> Iterator[float]:
    """The numbers in ``values``, flattened."""
    if hasattr(values, "detach"):
        values = values.detach()
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (int, float)):
        yield float(values)
        return
    for value in values:
        yield from _flat(value)


def checkpoint_written(path: str, step: int, metrics: Mapping[str, Any], size_bytes: int) -> None:
    """Report a complete checkpoint; ``path`` is relative to the output folder."""
    append(
        {
            "kind": "checkpoint",
            "path": path,
            "step": _integer("step", step),
            "metrics": plain_metrics(metrics),
            "size_bytes": size_bytes,
        }
    )


def append(line: Mapping[str, Any]) -> None:
    """Append ``line`` to the report file in a single write, so that lines of several processes never mix."""
    path = os.environ.get("TRAINMASTER_REPORT_FILE", "")
    if not path:
        return
    data = json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(file, data) < len(data):
                # A full disk truncated the line: end it here, so that only this line is lost.
                os.write(file, b"\n")
        finally:
            os.close(file)
    except OSError as error:
        _warn_once(path, error)


def plain_metrics(metrics: Mapping[str, Any]) -> Dict[str, Union[Number, str, bool]]:
    """``metrics`` as JSON values.

    Raises:
        TypeError: a value is not a number (the message names the metric), or ``metrics`` is not a mapping.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics: {shown(metrics)} is not a dict of names and numbers")
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: Any) -> Union[Number, str, bool]:
    try:
        if hasattr(value, "item"):
            value = value.item()  # torch refuses one of several elements with a RuntimeError
        if isinstance(value, (bool, int)):
            return value
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"metric {name!r}: {shown(value)} is not a number") from error
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _warn_once(path: str, error: OSError) -> None:
    global _has_warned  # noqa: PLW0603 (one warning for each process is the point)
    if not _has_warned:
        _has_warned = True
        print(
            f"trainmaster: cannot report to {path} ({error.strerror}); the training continues without reports.",
            file=sys.stderr,
        )
