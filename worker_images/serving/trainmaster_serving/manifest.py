"""The manifest of a batch prediction, ``batch.json``: the model and the input of the predictions in a folder.

A resumed batch compares it first, so that one folder never has predictions of two models, or of other instances. Times
of files are not used: copying changes them, and some programs preserve them although they change the content.
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
_READ_TIMEOUT_S = 5.0
# Bytes read for a digest, of all files together: a second of a disk, where 10 GB would cost each replica a minute.
_READ_BYTES = 256 * 2**20
_LEAST_BYTES = 2**20  # minimum of each file
_PIECES = 64
_PIECE_BYTES = 2**20


def manifest_of(options: argparse.Namespace, paths: Sequence[str]) -> Dict[str, Any]:
    """The manifest of this batch. Raises ``ModelProblem``: there is no model, or an input cannot be read."""
    kind, path = find_model(options.model, options.model_file, options.framework)
    names = [os.path.relpath(file, options.instances) for file in paths]
    marks = ["csv" if is_csv(file, options.format) else "jsonl" for file in paths]
    return {
        # For people; the digest is compared.
        "model": options.model_name or os.path.join(options.model, options.model_file),
        "model_digest": options.model_digest or "content:" + digest_of_files(options.model, _files_of(path)),
        "framework": kind,
        "files": len(paths),
        "input": digest_of_files(options.instances, paths, "\n".join(map(" ".join, zip(marks, names)))),
        "csv_rows": options.csv_rows,
        "shard_size": options.shard_size,
    }


def _files_of(model: str) -> List[str]:
    """The files of a model that is this file or folder."""
    if os.path.isdir(model):
        return sorted(os.path.join(root, name) for root, _, names in os.walk(model) for name in names)
    siblings = [os.path.join(os.path.dirname(model), name) for name in ("model.py", IMAGES_FILE)]
    return [model, *(file for file in siblings if os.path.isfile(file))]


def digest_of_files(folder: str, paths: Sequence[str], more: str = "") -> str:
    """Digest of names, sizes and contents. Of large inputs only evenly spaced pieces of each file are read."""
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
                    for manifest_path in range(_PIECES):
                        stream.seek((size - length) * manifest_path // (_PIECES - 1))
                        digest.update(stream.read(length))
        except FileNotFoundError as error:
            raise InputProblem("There is no file %s." % path) from error
    return digest.hexdigest()


def check_same_batch(output: str, current: Dict[str, Any]) -> None:
    """Raises ``ModelProblem``: the output has predictions of another model or input."""
    manifest_path = os.path.join(output, MANIFEST)
    # Predictions without a manifest: check again, another replica may have begun in between.
    if not os.path.exists(manifest_path) and _has_predictions(output) and not os.path.exists(manifest_path):
        raise ModelProblem(
            "The output holds predictions, and no %s that says by which model; choose another output." % MANIFEST
        )
    if os.path.exists(manifest_path):
        existing = _read(manifest_path)
        if existing is not None:
            _compare(existing, current)


def write_manifest(output: str, current: Dict[str, Any]) -> None:
    """Write the manifest, or compare an existing one. Raises as ``check_same_batch``.

    Called before the first prediction is written: a batch that failed earlier does not block the next one.
    """
    manifest_path = os.path.join(output, MANIFEST)
    try:
        # One of the starting replicas creates it, and the others compare.
        with open(manifest_path, "x", encoding="utf-8") as stream:
            stream.write(json.dumps(current))
        return
    except FileExistsError:
        existing = _read(manifest_path)
    if existing is None:  # its writer was killed at once
        with open(manifest_path, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(current))
        return
    _compare(existing, current)


def _has_predictions(output: str) -> bool:
    return any(name.startswith("predictions-") and name.endswith(".jsonl") for name in os.listdir(output))


def _compare(existing: Any, current: Dict[str, Any]) -> None:
    other = "choose another output, or delete this one first."
    if not isinstance(existing, dict) or "model_digest" not in existing:
        raise ModelProblem(
            "The output holds predictions of an earlier version of the platform, which did not record the model; "
            + other
        )
    if existing["model_digest"] != current["model_digest"]:
        if existing.get("model") == current["model"]:
            raise ModelProblem(
                "The output holds predictions of %s as it was before its files changed; %s" % (current["model"], other)
            )
        raise ModelProblem(
            "The output holds predictions of model %s, and this is %s; %s"
            % (existing.get("model"), current["model"], other)
        )
    if existing.get("input") != current["input"]:
        files = "1 file" if current["files"] == 1 else "%d files" % current["files"]
        raise ModelProblem(
            "The output holds predictions of other instances: a name or the content of the %s differs; %s"
            % (files, other)
        )
    for field, option in (("shard_size", "--shard-size"), ("csv_rows", "--csv-rows"), ("framework", "--framework")):
        if existing.get(field) != current[field]:
            raise ModelProblem(
                "The output holds predictions that were made with %s %s, not %s: use that to continue, or choose "
                "another output." % (option, existing.get(field), current[field])
            )


def _read(manifest_path: str) -> Any:
    """Read a manifest that another replica may be writing; ``None`` if it is incomplete after the time-out."""
    end = time.monotonic() + _READ_TIMEOUT_S
    while True:
        try:
            with open(manifest_path, encoding="utf-8") as stream:
                return json.load(stream)
        except ValueError:
            if time.monotonic() >= end:
                return None
        threading.Event().wait(0.05)
