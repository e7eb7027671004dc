"""The inspector process: one request per line on stdin, answers as JSON lines on stdout.

Its memory and time are limited, it writes no file, and it knows no secret, which confines what a hostile file could do
to a parser. Started by :mod:`core.inspection.pool`.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from core.domain.errors import TrainmasterError
from core.inspection.formats.detection import open_checkpoint
from core.inspection.layers import layer_of
from core.inspection.model import CheckpointContents, Tensor, Unreadable
from core.storage.tree import Tree

# Memory limit beyond its code: the statistics of any checkpoint need less than 100 MiB.
DATA_BYTES: Final = 384 * 2**20
ADDRESS_BYTES: Final = 4 * 2**30
# An idle process ends by itself.
IDLE_S: Final = 120.0
_AT_ONCE: Final = 2_000  # tensors per line
_TOO_LARGE: Final = "Its inspection needs more memory than allowed; the file is damaged, or too large."


def main() -> None:
    _bound()
    answers = os.fdopen(os.dup(1), "wb", buffering=2**16)
    # Output of libraries is no answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    requests = sys.stdin.buffer
    while True:
        ready, _, _ = select.select([requests], [], [], IDLE_S)
        line = requests.readline() if ready else b""
        if not line:
            return
        answers.write(b'{"begin":true}\n')
        answers.flush()
        request = orjson.loads(line)
        # A second limit: the parent kills at the deadline, if it lives.
        signal.alarm(int(request["deadline_s"]) + 5)
        is_spent = False
        try:
            for answer in _answers_to(request, time.monotonic):
                answers.write(orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE))
                answers.flush()
        except (Unreadable, TrainmasterError) as error:
            answers.write(orjson.dumps({"problem": error.sentence}, option=orjson.OPT_APPEND_NEWLINE))
        except MemoryError:
            is_spent = True
            answers.write(orjson.dumps({"problem": _TOO_LARGE}, option=orjson.OPT_APPEND_NEWLINE))
        except RecursionError:
            problem = "It is nested too deeply to be inspected."
            answers.write(orjson.dumps({"problem": problem}, option=orjson.OPT_APPEND_NEWLINE))
        answers.write(orjson.dumps({"end": True, "is_spent": is_spent}, option=orjson.OPT_APPEND_NEWLINE))
        answers.flush()
        signal.alarm(0)
        if is_spent:
            return


def _bound() -> None:
    for what, limit in (
        (resource.RLIMIT_AS, ADDRESS_BYTES),
        (resource.RLIMIT_DATA, DATA_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ):
        _, hard = resource.getrlimit(what)
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (bound, bound))


def _answers_to(request: Mapping[str, Any], clock: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """The answers to one request, before its last line.

    ``list``: a line with ``tensors`` for each few thousand of them, and one with the rest as ``contents``.
    ``statistics``, ``difference``: a line for each of ``names``, until ``budget_s`` are over (at least one line).
    """
    contents = _open(request["place"])
    match request["what"]:
        case "list":
            for start in range(0, len(contents.tensors), _AT_ONCE):
                yield {"tensors": [_tensor_json(tensor) for tensor in contents.tensors[start : start + _AT_ONCE]]}
            yield {"contents": {"format": contents.format, "values": contents.values, "notes": contents.notes}}
        case "statistics":
            from core.inspection.statistics import statistics

            tensors = {tensor.name: tensor for tensor in contents.tensors}
            for name in _within(request, clock):
                tensor = tensors.get(name)
                yield {"item": {"name": name, "note": "It is gone."} if tensor is None else statistics(tensor)}
        case "difference":
            from core.inspection.statistics import difference

            before = {tensor.name: tensor for tensor in contents.tensors}
            after = {tensor.name: tensor for tensor in _open(request["other"]).tensors}
            for name in _within(request, clock):
                old, new = before.get(name), after.get(name)
                if old is None or new is None:
                    yield {"item": {"name": name, "change": "unread", "note": "It is gone."}}
                else:
                    yield {"item": {"name": name, **difference(old, new)}}


def _within(request: Mapping[str, Any], clock: Callable[[], float]) -> Iterator[str]:
    until = clock() + request["budget_s"]
    for number, name in enumerate(request["names"]):
        if number and clock() > until:
            return
        yield name


def _open(place: Mapping[str, str]) -> CheckpointContents:
    tree = Tree(place["root"], place["base"], label=place["label"])
    return open_checkpoint(tree, place["path"])


def _tensor_json(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "count": tensor.count,
        "size_bytes": tensor.size_bytes,
        "is_optimizer": tensor.is_optimizer,
        "layer": layer_of(tensor.name),
        "file": tensor.file,
        "note": tensor.note,
    }


if __name__ == "__main__":
    main()
