"""Batch prediction: predictions for all instances of some files, divided among the replicas of a job.

The simple equivalent reads all instances in order and writes one line for each. Here they are divided into shards of a
fixed number of instances, counted over all files in the order of their names; replica ``i`` of ``n`` processes every
``n``-th shard. A shard's predictions and errors are written to temporary files and renamed last, so that an existing
file is complete: a restarted replica continues at its first shard without one. At the end a replica writes the numbers
of predictions and errors in its shards, including those of earlier runs.

Reading JSONL is quick (all replicas read all lines, and parse only their own), so no index of line offsets is needed.

The manifest, ``batch.json``, records the model and the input of the predictions in a folder. A resumed batch compares
it first, so that one folder never has predictions of two models, or of other instances. Times of files are not used:
copying changes them, and some programs preserve them although they change the content.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from trainmaster_serving.errors import BadInstances, InputProblem, ModelProblem
from trainmaster_serving.image_model import IMAGES_FILE
from trainmaster_serving.input_files import Row, find_files, is_csv, read_rows
from trainmaster_serving.models import PredictionModel, find_model, load_model
from trainmaster_serving.values import plain

_PREDICTIONS = "predictions-%05d.jsonl"
_ERRORS = "errors-%05d.jsonl"
# Named by the replica's index and their number: with another number of replicas the shards are divided differently.
_SUMMARY = "summary-%d-of-%d.json"
_LOG_EVERY_S = 10.0
_MAX_ERROR_LENGTH = 1000  # characters
# An instance in an error: complete, or truncated if it is longer; in characters.
_MAX_WHOLE_INSTANCE = 10_000
_CUT_LENGTH = 1000
_READ_BYTES = 2**20

_MANIFEST = "batch.json"
READ_TIMEOUT_S = 5.0
# Bytes read for a digest, of all files together: a second of a disk, where 10 GB would cost each replica a minute.
DIGEST_BYTES = 256 * 2**20
MIN_FILE_BYTES = 2**20  # minimum of each file
_PIECES = 64
_PIECE_BYTES = 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    env = os.environ
    parser.add_argument("--batch", action="store_true", help="predict for files instead of serving")
    parser.add_argument("--instances", default="/data/instances", help="folder of the files")
    parser.add_argument("--instances-file", default="", help="one file in the folder; default: all")
    parser.add_argument("--format", default="auto", choices=("auto", "jsonl", "csv"))
    parser.add_argument("--csv-rows", default="object", choices=("object", "array"), help="instance made of a CSV row")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--shard-size", type=int, default=10_000)
    parser.add_argument("--output", default=env.get("TRAINMASTER_OUTPUT_DIR", "/data/output"))
    parser.add_argument("--index", type=int, default=int(env.get("RANK") or 0), help="which of the replicas this is")
    parser.add_argument("--count", type=int, default=int(env.get("WORLD_SIZE") or 1), help="of how many")
    # Set by the environment, which servers of older versions ignore.
    parser.add_argument("--model-name", default=env.get("AIP_MODEL_NAME", ""), help="the model's name for people")
    parser.add_argument("--model-digest", default=env.get("AIP_MODEL_DIGEST", ""), help="default: of its files")


def run_batch(options: argparse.Namespace) -> int:
    """Run; returns the exit code. Raises ``ModelProblem``: the model or input cannot be read, or the output is of
    others.
    """
    paths = find_files(options.instances, options.instances_file, options.format)
    os.makedirs(options.output, exist_ok=True)
    own = manifest_of(options, paths)
    check_same_batch(options.output, own)
    model = load_model(options.model, options.model_file, options.framework, options.trust_code)
    done, failed, logged_s, is_manifest_written = 0, 0, time.monotonic(), False
    tally = Tally()
    proven: List[Any] = []
    for number, rows in shards(
        read_rows(options.instances, paths, options.format, options.csv_rows),
        options.shard_size,
        options.index,
        options.count,
    ):
        path = os.path.join(options.output, _PREDICTIONS % number)
        errors_path = os.path.join(options.output, _ERRORS % number)
        if os.path.exists(path):
            tally.add_files(path, errors_path)
            continue
        predictions, errors = predict_shard(model, rows, options.batch_size, proven)
        if not is_manifest_written:
            write_manifest(options.output, own)
            is_manifest_written = True
        if errors:
            _write(errors_path, errors, options.index)
        _write(path, predictions, options.index)  # last: it marks the shard as done
        tally.add(len(predictions), len(errors), errors[0] if errors else None)
        done, failed = done + len(predictions), failed + len(errors)
        if time.monotonic() - logged_s >= _LOG_EVERY_S:
            logged_s = time.monotonic()
            print("shard=%d predictions=%d errors=%d" % (number, done, failed), flush=True)
    _write(os.path.join(options.output, _SUMMARY % (options.index, options.count)), [tally.plain()], options.index)
    if not tally.predictions and not tally.errors and not options.index:
        print("The input has no instances.", flush=True)
    print("Done: %d predictions, %d errors in this run." % (done, failed), flush=True)
    return 0


class Tally:
    """Counts the predictions and errors in a replica's shards, and stores the first error's text."""

    def __init__(self) -> None:
        self.predictions = 0
        self.errors = 0
        self.first_error = ""

    def add(self, predictions: int, errors: int, first: Any) -> None:
        """Add a shard. ``first``: its first error, or ``None``."""
        self.predictions += predictions
        self.errors += errors
        if first is not None and not self.first_error:
            self.first_error = str(first["error"])[:_MAX_ERROR_LENGTH]

    def add_files(self, predictions: str, errors: str) -> None:
        """Add a shard that an earlier run has done."""
        count, first = 0, None
        if os.path.exists(errors):
            count = _lines(errors)
            with open(errors, encoding="utf-8") as stream:
                first = json.loads(stream.readline())
        self.add(_lines(predictions), count, first)

    def plain(self) -> Dict[str, Any]:
        return {"predictions": self.predictions, "errors": self.errors, "first_error": self.first_error}


def shards(rows: Iterator[Row], size: int, index: int, count: int) -> Iterator[Tuple[int, List[Row]]]:
    """This replica's shards with their numbers, in order."""
    number = 0
    shard: List[Row] = []
    for path, row in enumerate(rows):
        if path // size != number:
            if shard:
                yield number, shard
            number, shard = path // size, []
        if number % count == index:
            shard.append(row)
    if shard:
        yield number, shard


def predict_shard(
    model: PredictionModel, rows: Sequence[Row], batch_size: int, proven: List[Any]
) -> Tuple[List[Any], List[Any]]:
    """Lines of the predictions, and of the errors. If a batch fails, its instances are predicted one by one.

    ``proven``: filled with one instance that the model could predict; passed on from shard to shard. Raises
    ``MemoryError``, and the model's exception if the model itself fails (a lost device or file) and not an instance: it
    now fails for ``proven`` as well, or has failed for several instances and never made a prediction.
    """
    predictions: List[Any] = []
    errors: List[Any] = []
    good = []
    for row in rows:
        if row.problem:
            errors.append(_error(row, row.text, row.problem))
            continue
        try:
            good.append((row, json.loads(row.text)))
        except (ValueError, RecursionError) as error:
            errors.append(_error(row, row.text.rstrip("\n"), "not JSON: %s" % error))
    failures, last = 0, None  # since the last prediction; earlier exceptions are dropped: each may hold device memory
    for begin in range(0, len(good), batch_size):
        batch = good[begin : begin + batch_size]
        instances = [instance for _, instance in batch]
        try:
            answers = model.predict(instances, {})
        except Exception:  # noqa: BLE001 (a model may raise anything; one bad instance must not fail the others)
            for row, instance in batch:
                line, problem = _predict_single(model, row, instance)
                if problem is None:
                    predictions.append(line)
                    proven[:] = [instance]
                    failures = 0
                    continue
                errors.append(line)
                if not isinstance(problem, BadInstances):
                    failures, last = failures + 1, problem
            if failures and proven:
                model.predict(proven, {})
                failures = 0
        else:
            predictions += [
                {"instance": instance, "prediction": plain(answer)} for instance, answer in zip(instances, answers)
            ]
            proven[:] = instances[:1]
            failures = 0
    # And none is proven. Checked at the end, because bad instances may all come first.
    if failures > 1 and last is not None:
        raise last
    return predictions, errors


def _predict_single(model: PredictionModel, row: Row, instance: Any) -> Tuple[Dict[str, Any], Optional[Exception]]:
    """The line of one instance, and its error if there is one. Raises ``MemoryError``."""
    try:
        return {"instance": instance, "prediction": plain(model.predict([instance], {})[0])}, None
    except MemoryError:
        raise
    except BadInstances as error:
        return _error(row, instance, str(error)), error
    except Exception as error:  # noqa: BLE001 (the same)
        return _error(row, instance, "the model failed: %s: %s" % (type(error).__name__, error)), error


def _error(row: Row, instance: Any, message: str) -> Dict[str, Any]:
    """A line of an error. ``instance``: as far as it could be read; a huge one is truncated, with a note."""
    line: Dict[str, Any] = {"file": row.file, "line": row.line, "instance": instance}
    if len(row.text) > _MAX_WHOLE_INSTANCE:
        line["instance"] = row.text[:_CUT_LENGTH]
        line["note"] = "the instance is cut: it has %d letters" % len(row.text)
    return {**line, "error": message[:_MAX_ERROR_LENGTH]}


def _lines(path: str) -> int:
    with open(path, "rb") as stream:
        return sum(piece.count(b"\n") for piece in iter(lambda: stream.read(_READ_BYTES), b""))


def _write(path: str, lines: Sequence[Any], index: int) -> None:
    """Write atomically. The temporary name is random: replicas share the folder, and may have equal process ids."""
    temporary = "%s.%d-%s.part" % (path, index, secrets.token_hex(8))
    try:
        with open(temporary, "x", encoding="utf-8") as stream:
            stream.writelines(json.dumps(plain(line), allow_nan=False) + "\n" for line in lines)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass  # it was renamed


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
    share = max(MIN_FILE_BYTES, DIGEST_BYTES // max(1, len(paths)))
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
                    for number in range(_PIECES):
                        stream.seek((size - length) * number // (_PIECES - 1))
                        digest.update(stream.read(length))
        except FileNotFoundError as error:
            raise InputProblem("There is no file %s." % path) from error
    return digest.hexdigest()


def check_same_batch(output: str, current: Dict[str, Any]) -> None:
    """Raises ``ModelProblem``: the output has predictions of another model or input."""
    manifest_path = os.path.join(output, _MANIFEST)
    # Predictions without a manifest: check again, another replica may have begun in between.
    if not os.path.exists(manifest_path) and _has_predictions(output) and not os.path.exists(manifest_path):
        raise ModelProblem(
            "The output holds predictions, and no %s that says by which model; choose another output." % _MANIFEST
        )
    if os.path.exists(manifest_path):
        existing = _read_manifest(manifest_path)
        if existing is not None:
            _compare_manifests(existing, current)


def write_manifest(output: str, current: Dict[str, Any]) -> None:
    """Write the manifest, or compare an existing one. Raises as ``check_same_batch``.

    Called before the first prediction is written: a batch that failed earlier does not block the next one.
    """
    manifest_path = os.path.join(output, _MANIFEST)
    try:
        # One of the starting replicas creates it, and the others compare.
        with open(manifest_path, "x", encoding="utf-8") as stream:
            stream.write(json.dumps(current))
        return
    except FileExistsError:
        existing = _read_manifest(manifest_path)
    if existing is None:  # its writer was killed at once
        with open(manifest_path, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(current))
        return
    _compare_manifests(existing, current)


def _has_predictions(output: str) -> bool:
    return any(name.startswith("predictions-") and name.endswith(".jsonl") for name in os.listdir(output))


def _compare_manifests(existing: Any, current: Dict[str, Any]) -> None:
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


def _read_manifest(manifest_path: str) -> Any:
    """Read a manifest that another replica may be writing; ``None`` if it is incomplete after the time-out."""
    end = time.monotonic() + READ_TIMEOUT_S
    while True:
        try:
            with open(manifest_path, encoding="utf-8") as stream:
                return json.load(stream)
        except ValueError:
            if time.monotonic() >= end:
                return None
        threading.Event().wait(0.05)
