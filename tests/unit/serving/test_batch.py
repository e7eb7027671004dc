"""Batch predictions: shards that replicas share, what their files may be, and what they are never mixed with."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from trainmaster_serving import batch
from trainmaster_serving.errors import BadInstances, InputProblem, ModelProblem
from trainmaster_serving.input_files import Row, read_rows


class Doubles:
    """A model of numbers."""

    def predict(self, instances: Any, parameters: Any) -> list[Any]:
        if not all(isinstance(one, (int, float)) for one in instances):
            raise BadInstances("instances: this model takes numbers")
        return [one * parameters.get("by", 2) for one in instances]


def run_batch(monkeypatch: pytest.MonkeyPatch, folder: Path, model: Any = None, **more: Any) -> None:
    monkeypatch.setattr(batch, "load_model", lambda *_: model or Doubles())
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "model.skops").touch()
    options = {
        "instances": str(folder / "in"),
        "instances_file": "",
        "format": "auto",
        "batch_size": 4,
        "shard_size": 10,
        "output": str(folder / "out"),
        "index": 0,
        "count": 1,
        "model": str(folder / "model"),
        "model_file": "",
        "model_name": "",
        "model_digest": "",
        "framework": "auto",
        "trust_code": False,
        "csv_rows": "object",
        **more,
    }
    assert batch.run_batch(argparse.Namespace(**options)) == 0


def lines(folder: Path, kind: str) -> list[Any]:
    return [
        json.loads(line)
        for path in sorted((folder / "out").glob(f"{kind}-*"))
        for line in path.read_text().splitlines()
    ]


def test_replicas_share_the_shards_and_one_that_was_lost_does_only_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(f"{number}\n" for number in range(25)) + '"text"\nnonsense\n')
    run_batch(monkeypatch, tmp_path, index=1, count=2)
    assert [one["prediction"] for one in lines(tmp_path, "predictions")] == list(range(20, 40, 2))
    run_batch(monkeypatch, tmp_path, index=0, count=2)
    assert [one["prediction"] for one in lines(tmp_path, "predictions")] == list(range(0, 50, 2))
    assert [one["error"][:22] for one in lines(tmp_path, "errors")] == [
        "not JSON: Expecting va",
        "instances: this model ",
    ]
    lost = tmp_path / "out" / "predictions-00001.jsonl"
    lost.unlink()
    others = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("predictions-*")}
    run_batch(monkeypatch, tmp_path)
    assert lost.exists()
    assert {path: path.stat().st_mtime_ns for path in others} == others


class Reads:
    """Takes ``x``. Once an instance asks it to break, it fails with all of them, as with a device after a failed
    assertion.
    """

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken

    def predict(self, instances: Any, parameters: Any) -> list[Any]:
        self.is_broken = self.is_broken or any("break" in one for one in instances)
        if any("memory" in one for one in instances):
            raise MemoryError
        if any("refuse" in one for one in instances):
            raise BadInstances("no")
        if self.is_broken:
            raise RuntimeError("device lost")
        return [one["x"] for one in instances]


def shard(*instances: dict[str, int]) -> list[Row]:
    return [Row("a.jsonl", number, json.dumps(one)) for number, one in enumerate(instances, start=1)]


def test_an_instance_that_the_model_fails_at_is_not_the_end_of_the_others() -> None:
    predictions, errors = batch.predict_shard(Reads(), shard({"x": 1}, {"y": 2}, {"x": 3}), 2, [])
    assert [one["prediction"] for one in predictions] == [1, 3]
    assert errors == [{"file": "a.jsonl", "line": 2, "instance": {"y": 2}, "error": "the model failed: KeyError: 'x'"}]


@pytest.mark.parametrize("size", [1, 2])
def test_odd_instances_are_no_sign_of_a_model_that_fails(size: int) -> None:
    odd: dict[str, int] = {"y": 2}
    proven: list[Any] = []
    assert [len(part) for part in batch.predict_shard(Reads(), shard(odd), size, proven)] == [0, 1]
    assert [len(part) for part in batch.predict_shard(Reads(), shard(odd, odd, {"x": 1}), size, proven)] == [1, 2]
    assert [len(part) for part in batch.predict_shard(Reads(), shard(odd, odd, odd), size, proven)] == [0, 3]
    assert [len(part) for part in batch.predict_shard(Reads(), shard({"refuse": 1}, {"refuse": 1}), size, [])] == [0, 2]


@pytest.mark.parametrize(
    ("instances", "is_broken"),
    [
        ([{"x": 1}, {"x": 1}, {"break": 1}, {"x": 1}], False),  # in a batch of its own
        ([{"x": 1}, {"break": 1}], False),  # after one that had its prediction in the same batch
        ([{"x": 1}, {"x": 1}, {"break": 1}, {"refuse": 1}], False),
        ([{"x": 1}, {"x": 1}], True),
    ],
)
def test_a_model_that_fails_for_good_ends_the_replica(instances: list[dict[str, int]], is_broken: bool) -> None:
    with pytest.raises(RuntimeError, match="device lost"):
        batch.predict_shard(Reads(is_broken=is_broken), shard(*instances), 2, [])


def test_a_model_that_fails_after_a_shard_writes_no_shard_of_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"break": 1}\n{"x": 3}\n')
    with pytest.raises(RuntimeError, match="device lost"):
        run_batch(monkeypatch, tmp_path, Reads(), shard_size=2)
    assert [path.name for path in (tmp_path / "out").glob("*-0*")] == ["predictions-00000.jsonl"]


def test_a_replica_without_memory_ends() -> None:
    with pytest.raises(MemoryError):
        batch.predict_shard(Reads(), shard({"x": 1}, {"memory": 1}, {"x": 1}), 1, [])


def test_each_replica_counts_its_shards_those_of_earlier_runs_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(f"{number}\n" for number in range(25)) + '"text"\nnonsense\n')

    def summary(index: int, count: int) -> Any:
        run_batch(monkeypatch, tmp_path, index=index, count=count)
        return json.loads((tmp_path / "out" / f"summary-{index}-of-{count}.json").read_text())

    first = summary(0, 2)
    assert (first["predictions"], first["errors"]) == (15, 2)
    assert first["first_error"].startswith("not JSON: Expecting value")
    assert summary(1, 2) == {"predictions": 10, "errors": 0, "first_error": ""}
    again = summary(0, 1)  # nothing is left to do: all of it is read from the files
    assert again == {"predictions": 25, "errors": 2, "first_error": first["first_error"]}


def test_predictions_of_other_instances_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("1\n")
    run_batch(monkeypatch, tmp_path)
    (tmp_path / "in" / "a.jsonl").write_text("1\n2\n")
    with pytest.raises(ModelProblem, match="choose another output"):
        run_batch(monkeypatch, tmp_path)


def rows_of(folder: Path, file: str = "a.csv", csv_rows: str = "object") -> list[Any]:
    return [json.loads(row.text) for row in read_rows(str(folder), [str(folder / file)], "auto", csv_rows)]


def test_rows_of_csv_are_objects_with_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,name\n1,"a, b"\n2.5,\n')
    rows = rows_of(tmp_path)
    assert rows == [{"x": 1, "name": "a, b"}, {"x": 2.5, "name": ""}]
    assert rows_of(tmp_path, csv_rows="array") == [[1, "a, b"], [2.5, ""]]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("-7", -7),
        ("2.50", 2.5),
        ("1e-3", 0.001),
        ("0", 0),
        ("inf", float("inf")),
        ("00123", "00123"),
        ("1_000", "1_000"),
        ("1e999", "1e999"),
        ("+49", "+49"),
        ("\u0661", "\u0661"),
        (" 1", " 1"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_cell_is_a_number_where_it_is_written_as_one(tmp_path: Path, cell: str, value: object) -> None:
    (tmp_path / "a.csv").write_text(f"x\n{cell}\n", encoding="utf-8")
    (row,) = rows_of(tmp_path)
    found = row["x"]
    assert (found, type(found)) == (value, type(value))


def test_what_is_not_finite_is_null_in_all_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("NaN\n[Infinity]\n2\n")
    run_batch(monkeypatch, tmp_path)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for kind, instances in (("predictions", [None, 2]), ("errors", [[None]])):
        text = (tmp_path / "out" / f"{kind}-00000.jsonl").read_text()
        assert [json.loads(line, parse_constant=refuse)["instance"] for line in text.splitlines()] == instances


def test_replicas_of_one_process_number_share_a_folder_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(f"{number}\n" for number in range(200)))

    def refuse(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr("os.link", refuse)
    replicas = [
        threading.Thread(target=run_batch, args=(monkeypatch, tmp_path), kwargs={"index": index, "count": 4})
        for index in (0, 1, 2, 3)
    ]
    for one in replicas:
        one.start()
    for one in replicas:
        one.join()
    assert [one["prediction"] for one in lines(tmp_path, "predictions")] == list(range(0, 400, 2))
    assert not list((tmp_path / "out").glob("*.part"))


def test_an_incomplete_manifest_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("1\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "batch.json").touch()
    monkeypatch.setattr(batch, "READ_TIMEOUT_S", 0.0)
    run_batch(monkeypatch, tmp_path)
    assert json.loads((tmp_path / "out" / "batch.json").read_text())["files"] == 1


# --- what an output is of --------------------------------------------------------------------------------------------


@pytest.fixture
def five(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("1\n2\n3\n4\n5\n")
    return tmp_path


def test_another_model_does_not_go_on_with_the_predictions_of_one(five: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batch(monkeypatch, five, model_name="iris@1", model_digest="sha256:1")
    before = lines(five, "predictions")
    with pytest.raises(ModelProblem, match=r"of model iris@1, and this is iris@2; choose another output"):
        run_batch(monkeypatch, five, model_name="iris@2", model_digest="sha256:2")
    assert lines(five, "predictions") == before
    (five / "out" / "predictions-00000.jsonl").unlink()
    run_batch(monkeypatch, five, model_name="iris@1", model_digest="sha256:1")  # the same goes on
    assert lines(five, "predictions") == before


def test_a_model_of_a_volume_is_known_by_its_content(five: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batch(monkeypatch, five)
    os.utime(five / "model" / "model.skops", (0, 0))
    run_batch(monkeypatch, five)
    (five / "model" / "model.skops").write_text("retrained")
    with pytest.raises(ModelProblem, match="as it was before its files changed"):
        run_batch(monkeypatch, five)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"shard_size": 2}, "--shard-size 10, not 2"),
        ({"csv_rows": "array"}, "--csv-rows object, not array"),
        ({"framework": "xgboost", "model_file": "model.skops"}, "--framework sklearn, not xgboost"),
    ],
)
def test_other_options_are_named(five: Path, monkeypatch: pytest.MonkeyPatch, more: Any, words: str) -> None:
    run_batch(monkeypatch, five)
    run_batch(monkeypatch, five, batch_size=1)  # has no part in what is predicted
    with pytest.raises(ModelProblem, match=words):
        run_batch(monkeypatch, five, **more)


def test_instances_are_known_by_their_content_not_by_a_time(five: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batch(monkeypatch, five)
    file = five / "in" / "a.jsonl"
    os.utime(file, (0, 0))
    run_batch(monkeypatch, five)
    file.write_text("1\n2\n3\n4\n6\n")
    os.utime(file, (0, 0))
    with pytest.raises(ModelProblem, match="other instances"):
        run_batch(monkeypatch, five)


def test_of_a_large_file_pieces_from_its_beginning_to_its_end_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "DIGEST_BYTES", 64 * 4)
    monkeypatch.setattr(batch, "MIN_FILE_BYTES", 64 * 4)
    file = tmp_path / "a.jsonl"

    def digest(content: bytes) -> str:
        file.write_bytes(content)
        return batch.digest_of_files(str(tmp_path), [str(file)])

    content = bytes(1000)
    assert digest(content) == digest(content) != digest(bytes(1001))
    assert len({digest(content), digest(b"x" + content[1:]), digest(content[:-1] + b"x")}) == 3


def test_a_batch_that_wrote_nothing_does_not_block_the_next(five: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def predict(self, instances: Any, parameters: Any) -> list[Any]:
            raise MemoryError

    with pytest.raises(MemoryError):
        run_batch(monkeypatch, five, Broken(), model_digest="sha256:1")
    run_batch(monkeypatch, five, model_digest="sha256:2")
    assert len(lines(five, "predictions")) == 5


@pytest.mark.parametrize(("content", "words"), [(None, "no batch.json"), ('{"files": 1}', "an earlier version")])
def test_predictions_of_an_unknown_model_are_not_mixed(
    five: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, words: str
) -> None:
    run_batch(monkeypatch, five)
    place = five / "out" / "batch.json"
    place.unlink()
    if content is not None:
        place.write_text(content)
    with pytest.raises(ModelProblem, match=words):
        run_batch(monkeypatch, five)


def test_of_two_batches_that_begin_at_once_one_has_the_folder(five: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """While it predicts, another batch begins and ends."""

        def predict(self, instances: Any, parameters: Any) -> list[Any]:
            if not (five / "out" / "batch.json").exists():
                run_batch(monkeypatch, five, model_name="iris@2", model_digest="sha256:2")
            return list(instances)

    with pytest.raises(ModelProblem, match=r"of model iris@2, and this is iris@1"):
        run_batch(monkeypatch, five, Other(), model_name="iris@1", model_digest="sha256:1")
    assert [one["prediction"] for one in lines(five, "predictions")] == [2, 4, 6, 8, 10]


# --- files as people write them --------------------------------------------------------------------------------------


def test_a_row_of_another_width_than_the_header_is_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counts:
        def predict(self, instances: Any, parameters: Any) -> list[Any]:
            return [len(one) for one in instances]

    (tmp_path / "in" / "deep").mkdir(parents=True)
    text = 'a,b,c,d\n1,"x\ny",3,4\n\n1,2,3,4,5\n1,2,3\n1\n'
    (tmp_path / "in" / "deep" / "a.csv").write_text(text)
    run_batch(monkeypatch, tmp_path, Counts())
    assert [one["prediction"] for one in lines(tmp_path, "predictions")] == [4]
    assert lines(tmp_path, "errors") == [
        {"file": "deep/a.csv", "line": line, "instance": instance, "error": f"row {row} has {has}, the header has 4"}
        for line, row, instance, has in (
            (5, 3, '["1", "2", "3", "4", "5"]', "5 cells"),
            (6, 4, '["1", "2", "3"]', "3 cells"),
            (7, 5, '["1"]', "1 cell"),
        )
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "A.CSV.GZ", "a.tsv"])
def test_csv_is_read_as_automl_reads_it(tmp_path: Path, delimiter: str, name: str) -> None:
    header = delimiter.join([" size", '"price, in €; all | of it"', "town"])
    data = f'\ufeff{header}\r\n1{delimiter}"2,5"{delimiter}Köln\r\n'.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("GZ") else data)
    assert rows_of(tmp_path, name) == [{"size": 1, "price, in €; all | of it": "2,5", "town": "Köln"}]


def test_a_mark_before_jsonl_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf1\n2\n")
    assert rows_of(tmp_path, "a.jsonl") == [1, 2]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.csv.gz",
            gzip.compress(b"x\n" + os.urandom(5000).hex().encode())[:-2000],
            "a.csv.gz is a truncated gzip file",
        ),
        ("a.jsonl.gz", b'{"x": 1}\n', "a.jsonl.gz is not a gzip file"),
        (
            "a.csv",
            "x,town\n1,Bonn\n2,Köln\n".encode("latin-1"),
            r"a.csv, line 3: it is not UTF-8 text; save the file as",
        ),
        ("a.csv", b"x,x\n1,2\n", "two columns are called 'x'"),
        ("a.csv", b"x\n" + b"1" * (33 * 2**20) + b"\n", "a.csv, line 2: it cannot be read as CSV"),
    ],
    ids=["cut off", "no gzip", "no utf-8", "twice the same", "endless cell"],  # the contents would be part of the name
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputProblem, match=words):
        rows_of(tmp_path, name)


def test_a_huge_instance_is_truncated_in_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    long = json.dumps("x" * 50_000)
    (tmp_path / "in" / "a.jsonl").write_text(f"1\n{long}\nnonsense{long}\n")
    run_batch(monkeypatch, tmp_path)
    for number, error in enumerate(lines(tmp_path, "errors"), start=2):
        assert (error["line"] in (2, 3), len(error["instance"])) == (True, 1000), number
        assert error["note"].startswith("the instance is cut: it has 500")


def test_an_input_without_instances_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x,y\n")
    run_batch(monkeypatch, tmp_path)
    assert "The input has no instances." in capsys.readouterr().out
