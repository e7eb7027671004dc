"""What the predictions in a folder are of: ``batch.json`` beside them.

Whoever goes on with a batch compares it first, so that one folder never has predictions of two models, or of other instances.
The time of a file says nothing: it is touched by copies, and kept by programs that change its content.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import threading
import time
from typing import Any, Dict, List, Sequence

from trainmaster_serving.errors import InputProblem, ModelProblem
from trainmaster_serving.image_model import IMAGES_FILE
from trainmaster_serving.instances import is_csv
from trainmaster_serving.models import find_model

MANIFEST = "batch.json"
_WAIT_S = 5.0
# Read for a digest, of all files together: a second of a disk, where 10 GB would be a minute of each replica.
_READ_BYTES = 256 * 2**20
_LEAST_BYTES = 2**20  # of each
_PIECES = 64
_PIECE_BYTES = 2**20


def manifest_of(options: argparse.Namespace, paths: Sequence[str]) -> Dict[str, Any]:
    """What this batch is. Raises ``ModelProblem``: there is no model, or an input cannot be read."""
    kind, path = find_model(options.model, options.model_file, options.framework)
    names = [os.path.relpath(one, options.instances) for one in paths]
    marks = ["csv" if is_csv(one, options.format) else "jsonl" for one in paths]
    return {
        # For people: what is compared is the digest.
        "model": options.model_name or os.path.join(options.model, options.model_file),
        "model_digest": options.model_digest or "content:" + digest_of_files(options.model, _files_of(path)),
        "framework": kind,
        "files": len(paths),
        "input": digest_of_files(options.instances, paths, "\n".join(map(" ".join, zip(marks, names)))),
        "csv_rows": options.csv_rows,
        "shard_size": options.shard_size,
    }


def _files_of(model: str) -> List[str]:
    """What is read of a model that is this file or folder."""
    if os.path.isdir(model):
        return sorted(os.path.join(root, name) for root, _, names in os.walk(model) for name in names)
    beside = [os.path.join(os.path.dirname(model), name) for name in ("model.py", IMAGES_FILE)]
    return [model, *(one for one in beside if os.path.isfile(one))]


def digest_of_files(folder: str, paths: Sequence[str], more: str = "") -> str:
    """Of names, sizes and contents. Of files that are large together some pieces of each are read, evenly spread."""
    share = max(_LEAST_BYTES, _READ_BYTES // max(1, len(paths)))
    digest = hashlib.sha256(more.encode())
    for path in paths:
        try:
            size = os.path.getsize(path)
            digest.update(("%s %d\n" % (os.path.relpath(path, folder), size)).encode("utf-8", "surrogateescape"))
            with open(path, "rb") as stream:
                if size <= share:
                    for piece in iter(lambda: stream.read(_PIECE_BYTES), b""):
                        digest.update(piece)
                else:
                    length = share // _PIECES
                    for place in range(_PIECES):
                        stream.seek((size - length) * place // (_PIECES - 1))
                        digest.update(stream.read(length))
        except FileNotFoundError as error:
            raise InputProblem("There is no file %s." % path) from error
    return digest.hexdigest()


def demand_same(output: str, own: Dict[str, Any]) -> None:
    """Raises ``ModelProblem``: the output has predictions of something else."""
    place = os.path.join(output, MANIFEST)
    # Who finds no manifest and predictions looks again: another replica may have begun in between.
    if not os.path.exists(place) and _has_predictions(output) and not os.path.exists(place):
        raise ModelProblem(
            "The output holds predictions, and no %s that says by which model; choose another output." % MANIFEST
        )
    if os.path.exists(place):
        there = _read(place)
        if there is not None:
            _compare(there, own)


def claim(output: str, own: Dict[str, Any]) -> None:
    """Write down what the predictions that follow are of. Raises as ``demand_same``.

    To be called before the first of them is written: a batch that never got so far leaves nothing in the next one's way.
    """
    place = os.path.join(output, MANIFEST)
    try:
        # Of all replicas that begin one makes it, and the others compare.
        with open(place, "x", encoding="utf-8") as stream:
            stream.write(json.dumps(own))
        return
    except FileExistsError:
        there = _read(place)
    if there is None:  # who made it was killed at once
        with open(place, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(own))
        return
    _compare(there, own)


def _has_predictions(output: str) -> bool:
    return any(name.startswith("predictions-") and name.endswith(".jsonl") for name in os.listdir(output))


def _compare(there: Any, own: Dict[str, Any]) -> None:
    other = "choose another output, or delete this one first."
    if not isinstance(there, dict) or "model_digest" not in there:
        raise ModelProblem(
            "The output holds predictions of an earlier version of the platform, which did not write down by which model; "
            + other
        )
    if there["model_digest"] != own["model_digest"]:
        if there.get("model") == own["model"]:
            raise ModelProblem(
                "The output holds predictions of %s as it was before its files changed; %s" % (own["model"], other)
            )
        raise ModelProblem(
            "The output holds predictions of model %s, and this is %s; %s" % (there.get("model"), own["model"], other)
        )
    if there.get("input") != own["input"]:
        files = "1 file" if own["files"] == 1 else "%d files" % own["files"]
        raise ModelProblem(
            "The output holds predictions of other instances: a name or the content of the %s differs; %s"
            % (files, other)
        )
    for field, option in (("shard_size", "--shard-size"), ("csv_rows", "--csv-rows"), ("framework", "--framework")):
        if there.get(field) != own[field]:
            raise ModelProblem(
                "The output holds predictions that were made with %s %s, not %s: say that to go on, or choose another output."
                % (option, there.get(field), own[field])
            )


def _read(place: str) -> Any:
    """``None``: nobody has written it whole, although there was time to."""
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            with open(place, encoding="utf-8") as stream:
                return json.load(stream)
        except ValueError:
            if time.monotonic() >= end:
                return None
        threading.Event().wait(0.05)
