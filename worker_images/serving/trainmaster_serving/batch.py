"""Predictions for all instances of some files, shared by the replicas of a job.

The simple equivalent reads all instances in order and writes one line for each. Here they are cut into shards of a fixed
number of instances, counted over all files in the order of their names; replica ``i`` of ``n`` has every ``n``-th shard. A
shard's predictions and errors are written beside their place and moved there last, so that a file that is there is whole: a
replica that starts again goes on at the first shard that has none. Last of all a replica writes down how many predictions and
errors there are in its shards, those of earlier runs included.

Reading JSONL is quick (all replicas read all lines and parse their own alone), so nobody has to know where a line begins.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import math
import os
import re
import secrets
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, TextIO, Tuple

from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.models import Model, load_model
from trainmaster_serving.values import plain

_ENDS = (".jsonl", ".ndjson", ".json", ".csv")
_PREDICTIONS = "predictions-%05d.jsonl"
_ERRORS = "errors-%05d.jsonl"
# By the replica's index and their number: who goes on with another number of replicas shares the shards in another way.
_SUMMARY = "summary-%d-of-%d.json"
# Says what input the shards are of.
_MANIFEST = "batch.json"
_MANIFEST_WAIT_S = 5.0
_TOLD_EVERY_S = 10.0
# JSON's numbers alone: 00123 and 1_000 are names of something. And what is missing, as other tools write it.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?", re.ASCII)
_NOT_FINITE = ("nan", "NaN", "inf", "-inf", "Infinity", "-Infinity")
_DIGITS = 300  # of a number
_TOLD_OF_ERROR = 1000  # letters
_PIECE_BYTES = 2**20
Row = Tuple[str, str]  # its file, and a line of it as text (CSV: as JSON already)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    env = os.environ
    parser.add_argument("--batch", action="store_true", help="predict for files instead of serving")
    parser.add_argument("--instances", default="/data/instances", help="folder of the files")
    parser.add_argument("--instances-file", default="", help="the one file in it; unstated: all")
    parser.add_argument("--format", default="auto", choices=("auto", "jsonl", "csv"))
    parser.add_argument("--csv-rows", default="object", choices=("object", "array"), help="what a row of CSV becomes")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--shard-size", type=int, default=10_000)
    parser.add_argument("--output", default=env.get("TRAINMASTER_OUTPUT_DIR", "/data/output"))
    parser.add_argument("--index", type=int, default=int(env.get("RANK") or 0), help="which of the replicas this is")
    parser.add_argument("--count", type=int, default=int(env.get("WORLD_SIZE") or 1), help="of how many")


def run_batch(options: argparse.Namespace) -> int:
    """The exit code. Raises ``ModelProblem``: the model or the input cannot be read, or the output is of another input."""
    paths = find_files(options.instances, options.instances_file, options.format)
    os.makedirs(options.output, exist_ok=True)
    demand_same_input(options.output, paths, options.shard_size, options.index)
    model = load_model(options.model, options.model_file, options.framework, options.trust_code)
    done, failed, told_s = 0, 0, time.monotonic()
    tally = Tally()
    proven: List[Any] = []
    for number, rows in shards(
        read_rows(paths, options.format, options.csv_rows), options.shard_size, options.index, options.count
    ):
        place = os.path.join(options.output, _PREDICTIONS % number)
        of_errors = os.path.join(options.output, _ERRORS % number)
        if os.path.exists(place):
            tally.add_files(place, of_errors)
            continue
        predictions, errors = predict_shard(model, rows, options.batch_size, proven)
        if errors:
            _write(of_errors, errors, options.index)
        _write(place, predictions, options.index)  # last: it says that the shard is done
        tally.add(len(predictions), len(errors), errors[0] if errors else None)
        done, failed = done + len(predictions), failed + len(errors)
        if time.monotonic() - told_s >= _TOLD_EVERY_S:
            told_s = time.monotonic()
            print("shard=%d predictions=%d errors=%d" % (number, done, failed), flush=True)
    _write(os.path.join(options.output, _SUMMARY % (options.index, options.count)), [tally.plain()], options.index)
    print("Done: %d predictions, %d errors in this run." % (done, failed), flush=True)
    return 0


class Tally:
    """How many instances of a replica's shards have a prediction or an error, and what the first error says."""

    def __init__(self) -> None:
        self.predictions = 0
        self.errors = 0
        self.first_error = ""

    def add(self, predictions: int, errors: int, first: Any) -> None:
        """``first``: the shard's first error; ``None``: it has none."""
        self.predictions += predictions
        self.errors += errors
        if first is not None and not self.first_error:
            self.first_error = str(first["error"])[:_TOLD_OF_ERROR]

    def add_files(self, predictions: str, errors: str) -> None:
        """The same of a shard that an earlier run has done."""
        count, first = 0, None
        if os.path.exists(errors):
            count = _lines(errors)
            with open(errors, encoding="utf-8") as stream:
                first = json.loads(stream.readline())
        self.add(_lines(predictions), count, first)

    def plain(self) -> Dict[str, Any]:
        return {"predictions": self.predictions, "errors": self.errors, "first_error": self.first_error}


def find_files(folder: str, file: str, kind: str) -> List[str]:
    """The files by their names. Raises ``ModelProblem``: there are none."""
    if file:
        return [os.path.join(folder, file)]
    found = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        found += [
            os.path.join(root, name)
            for name in names
            if not name.startswith(".") and (kind != "auto" or _bare(name).endswith(_ENDS))
        ]
    if not found:
        raise ModelProblem(
            "There are no instances in %s: files end in %s, or name their format." % (folder, ", ".join(_ENDS))
        )
    return sorted(found)


def demand_same_input(output: str, paths: Sequence[str], shard_size: int, index: int) -> None:
    """Write down what the shards are of. Raises ``ModelProblem``: the output has those of another input."""
    about = hashlib.sha256()
    for path in paths:
        stat = os.stat(path)
        about.update(("%s %d %d\n" % (os.path.basename(path), stat.st_size, int(stat.st_mtime))).encode())
    own = {"files": len(paths), "input": about.hexdigest(), "shard_size": shard_size}
    place = os.path.join(output, _MANIFEST)
    try:
        # Of all replicas that begin one makes it, and the others compare.
        with open(place, "x", encoding="utf-8") as stream:
            stream.write(json.dumps(own))
        return
    except FileExistsError:
        there = _manifest(place)
    if there is None:
        _write(place, [own], index)  # who made it was killed at once
    elif there != own:
        raise ModelProblem(
            "The output holds predictions of other instances, or in shards of another size; choose another output."
        )


def _manifest(place: str) -> Any:
    """What the shards are of; ``None``: nobody has written it down, although there was time to."""
    end = time.monotonic() + _MANIFEST_WAIT_S
    while True:
        try:
            with open(place, encoding="utf-8") as stream:
                return json.load(stream)
        except ValueError:
            if time.monotonic() >= end:
                return None
        threading.Event().wait(0.05)


def read_rows(paths: Sequence[str], kind: str, csv_rows: str = "object") -> Iterator[Row]:
    """``csv_rows``: whether a row of CSV is an ``object`` by the header's names, or the ``array`` of its cells."""
    for path in paths:
        name = os.path.basename(path)
        with _open(path) as stream:
            if kind == "csv" or (kind == "auto" and _bare(path).endswith(".csv")):
                if csv_rows == "array":
                    lines = csv.reader(stream)
                    next(lines, None)  # the header
                    for cells in lines:
                        if cells:
                            yield name, json.dumps([_value(text) for text in cells])
                    continue
                for values in csv.DictReader(stream):
                    yield name, json.dumps({key: _value(text) for key, text in values.items() if key is not None})
            else:
                for line in stream:
                    if line.strip():
                        yield name, line


def shards(rows: Iterator[Row], size: int, index: int, count: int) -> Iterator[Tuple[int, List[Row]]]:
    """This replica's shards with their numbers, in order."""
    number = 0
    held: List[Row] = []
    for place, row in enumerate(rows):
        if place // size != number:
            if held:
                yield number, held
            number, held = place // size, []
        if number % count == index:
            held.append(row)
    if held:
        yield number, held


def predict_shard(model: Model, rows: Sequence[Row], batch_size: int, proven: List[Any]) -> Tuple[List[Any], List[Any]]:
    """Lines of the predictions, and of the errors. An instance that spoils its batch is found by asking one by one.

    ``proven``: filled with one instance that the model had a prediction for; given with each shard. Raises ``MemoryError``, and
    what the model raises when it is the model that fails (a device or a file that is lost), not an odd instance: it now fails
    with ``proven`` as well, or has failed with several instances and never had a prediction.
    """
    predictions: List[Any] = []
    errors: List[Any] = []
    good = []
    for name, text in rows:
        try:
            good.append((name, json.loads(text)))
        except ValueError as error:
            errors.append({"file": name, "instance": text.rstrip("\n")[:1000], "error": "no JSON: %s" % error})
    failures, last = 0, None  # since the model's last prediction; all of them would keep what they hold of a device
    for begin in range(0, len(good), batch_size):
        batch = good[begin : begin + batch_size]
        instances = [instance for _, instance in batch]
        try:
            answers = model.predict(instances, {})
        except Exception:  # noqa: BLE001 (the model's own, whatever it is: one odd instance is not the others' end)
            for name, instance in batch:
                line, problem = _alone(model, instance)
                if problem is None:
                    predictions.append(line)
                    proven[:] = [instance]
                    failures = 0
                    continue
                errors.append({"file": name, **line})
                if not isinstance(problem, BadInstances):
                    failures, last = failures + 1, problem
            if failures and proven:
                model.predict(proven, {})
                failures = 0
        else:
            predictions += [{"instance": one, "prediction": plain(answer)} for one, answer in zip(instances, answers)]
            proven[:] = instances[:1]
            failures = 0
    if failures > 1 and last is not None:  # and nothing is proven; only now, because odd instances may all come first
        raise last
    return predictions, errors


def _alone(model: Model, instance: Any) -> Tuple[Dict[str, Any], Optional[Exception]]:
    """The line of it, and why it is one of an error. Raises ``MemoryError``."""
    try:
        return {"instance": instance, "prediction": plain(model.predict([instance], {})[0])}, None
    except MemoryError:
        raise
    except BadInstances as error:
        return {"instance": instance, "error": str(error)}, error
    except Exception as error:  # noqa: BLE001 (the same)
        told = "the model failed: %s: %s" % (type(error).__name__, error)
        return {"instance": instance, "error": told[:_TOLD_OF_ERROR]}, error


def _value(text: Any) -> Any:
    """A cell: a number where it is written as one."""
    if not isinstance(text, str):
        return text  # a row that is too short or too long
    if text in _NOT_FINITE:
        return float(text)
    found = _NUMBER.fullmatch(text) if len(text) <= _DIGITS else None
    if found is None:
        return text
    if not (found["fraction"] or found["exponent"]):
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else text


def _lines(path: str) -> int:
    with open(path, "rb") as stream:
        return sum(piece.count(b"\n") for piece in iter(lambda: stream.read(_PIECE_BYTES), b""))


def _bare(path: str) -> str:
    return path.removesuffix(".gz")


def _open(path: str) -> TextIO:
    try:
        if path.endswith(".gz"):
            return gzip.open(path, "rt", encoding="utf-8", newline="")
        return open(path, encoding="utf-8", newline="")
    except OSError as error:
        raise ModelProblem("%s cannot be read: %s." % (path, error.strerror)) from error


def _write(place: str, lines: Sequence[Any], index: int) -> None:
    """All of it or nothing. Replicas share the folder, and in containers each may be process 1."""
    beside = "%s.%d-%s.part" % (place, index, secrets.token_hex(8))
    try:
        with open(beside, "x", encoding="utf-8") as stream:
            stream.writelines(json.dumps(plain(line), allow_nan=False) + "\n" for line in lines)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, place)
    finally:
        try:
            os.unlink(beside)
        except FileNotFoundError:
            pass  # it is in its place
