"""The platform's server: what it reads without running anything, what it refuses, and how it answers."""

from __future__ import annotations

import argparse
import http.client
import json
import pickle
import socket
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainmaster_serving import batch
from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.http_server import ModelServer
from trainmaster_serving.models import find_model, load_model


class Doubles:
    """A model of numbers."""

    def predict(self, instances: Any, parameters: Any) -> list[Any]:
        if not all(isinstance(one, (int, float)) for one in instances):
            raise BadInstances("instances: this model takes numbers")
        return [one * parameters.get("by", 2) for one in instances]


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["model.pt2"], "torch"),
        (["a.joblib"], "sklearn"),
        (["saved_model.pb", "keras.pkl"], "tensorflow"),
        (["model.pt", "optimizer.pt"], "torch"),
        (["m.ubj", "readme.txt"], "xgboost"),
    ],
)
def test_a_model_is_known_by_its_name(tmp_path: Path, files: list[str], kind: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert find_model(str(tmp_path))[0] == kind


def test_several_models_or_none_are_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelProblem, match="holds no model: it has nothing"):
        find_model(str(tmp_path))
    (tmp_path / "a.pt").touch()
    (tmp_path / "b.pt").touch()
    with pytest.raises(ModelProblem, match=r"several models \(a.pt, b.pt\)"):
        find_model(str(tmp_path))


class Evil:
    """A pickle that would write a file."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return (open, (self.place, "w"))


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.pt", "model.skops"])
def test_no_file_runs_code_unless_it_is_trusted(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "ran"
    (tmp_path / name).write_bytes(pickle.dumps(Evil(str(marker))))
    with pytest.raises(ModelProblem):
        load_model(str(tmp_path))
    assert not marker.exists()


def test_an_exported_program_is_not_unpickled_unless_it_is_trusted(tmp_path: Path) -> None:
    """Its archive says that a weight is a pickle, which torch's loader believes."""
    pytest.importorskip("torch")
    marker = tmp_path / "ran"
    lists, dicts = ("inputs", "outputs", "nodes"), ("tensor_values", "sym_int_values", "sym_bool_values")
    graph: dict[str, Any] = {**{name: [] for name in lists}, **{name: {} for name in dicts}}
    module = {"graph": graph, "signature": {"input_specs": [], "output_specs": []}, "module_call_graph": []}
    version = {"major": 8, "minor": 1}
    program = {"graph_module": module, "opset_version": {}, "range_constraints": {}, "schema_version": version}
    weight = {"path_name": "weight_0", "is_param": True, "use_pickle": True, "tensor_meta": None}
    entries: dict[str, str | bytes] = {
        "version": "3",
        "archive_format": "pt2",
        "archive_version": "0",
        "models/model.json": json.dumps(program),
        "data/sample_inputs/model.pt": "",
        "data/weights/model_weights_config.json": json.dumps({"config": {"a": weight}}),
        "data/weights/weight_0": pickle.dumps(Evil(str(marker))),
    }
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"model/{name}", content)
    with pytest.raises(ModelProblem, match="deploy with trust_code"):
        load_model(str(tmp_path))
    assert not marker.exists()


@pytest.fixture
def asked() -> Iterator[Any]:
    server = ModelServer(("127.0.0.1", 0), "/health", "/predict")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=120)
        try:
            connection.request(method, path, body, encode_chunked=isinstance(body, list))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    ask.server = server  # type: ignore[attr-defined]
    yield ask
    server.shutdown()
    server.server_close()
    thread.join()


def test_it_is_ready_when_its_model_is(asked: Any) -> None:
    assert asked("GET", "/health") == (503, {"error": "the model is being read"})
    asked.server.model = Doubles()
    assert asked("GET", "/health")[0] == 200
    asked.server.is_leaving = True
    assert asked("GET", "/health")[0] == 503


def test_who_is_told_to_end_while_the_model_is_read_ends_at_once() -> None:
    """Otherwise a replica that nobody wants any more holds its place, and its GPU, for as long as a large model is read."""
    code = (
        "import argparse, threading\n"
        "from trainmaster_serving import http_server\n"
        "def read(*_):\n"
        "    print('reading', flush=True)\n"
        "    threading.Event().wait(60)\n"
        "http_server.load_model = read\n"
        "http_server.serve(argparse.Namespace(host='127.0.0.1', port=0, health_route='/health', predict_route='/predict', "
        "model='', model_file='', framework='auto', trust_code=False))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_it_answers_in_vertex_ais_shape(asked: Any) -> None:
    asked.server.model = Doubles()
    assert asked("POST", "/predict", '{"instances": [1, 2.5]}') == (200, {"predictions": [2, 5.0]})
    assert asked("POST", "/predict", '{"instances": [1], "parameters": {"by": 3}}') == (200, {"predictions": [3]})
    assert asked("POST", "/predict", [b'{"instances"', b": [4]}"]) == (200, {"predictions": [8]})
    assert asked("POST", "/predict", '{"instances": []}') == (200, {"predictions": []})


def test_what_holds_for_all_predictions_is_told_beside_them(asked: Any) -> None:
    class Chances(Doubles):
        def metadata(self, parameters: Any) -> dict[str, Any]:
            return {"classes": ["no", "yes"]} if parameters else {}

    asked.server.model = Chances()
    told = asked("POST", "/predict", '{"instances": [1], "parameters": {"by": 3}}')
    assert told == (200, {"predictions": [3], "metadata": {"classes": ["no", "yes"]}})
    assert asked("POST", "/predict", '{"instances": [1]}') == (200, {"predictions": [2]})


def test_who_goes_away_is_no_failure_of_the_server(asked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def predict(self, instances: Any, parameters: Any) -> list[Any]:
            begun.set()
            assert go_on.wait(60)
            return list(instances)

    asked.server.model = Slow()
    body = b'{"instances": [1]}'
    with socket.create_connection(asked.server.server_address) as asking:
        asking.sendall(b"POST /predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert begun.wait(60)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    go_on.set()
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(60)
    asked.server.model = Doubles()
    assert asked("POST", "/predict", '{"instances": [1]}') == (200, {"predictions": [2]})
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "words"),
    [("nonsense", "no JSON"), ("[1]", "must be an object"), ('{"instances": ["a"]}', "takes numbers")],
)
def test_a_bad_request_is_told_what_is_wrong(asked: Any, body: str, words: str) -> None:
    asked.server.model = Doubles()
    status, answer = asked("POST", "/predict", body)
    assert status == 400
    assert words in answer["error"]


def run_batch(monkeypatch: pytest.MonkeyPatch, folder: Path, model: Any = None, **more: Any) -> None:
    monkeypatch.setattr(batch, "load_model", lambda *_: model or Doubles())
    options = {
        "instances": str(folder / "in"), "instances_file": "", "format": "auto", "batch_size": 4, "shard_size": 10,
        "output": str(folder / "out"), "index": 0, "count": 1, "model": "", "model_file": "", "framework": "auto",
        "trust_code": False, "csv_rows": "object", **more,
    }  # fmt: skip
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
        "no JSON: Expecting val",
        "instances: this model ",
    ]
    lost = tmp_path / "out" / "predictions-00001.jsonl"
    lost.unlink()
    others = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("predictions-*")}
    run_batch(monkeypatch, tmp_path)
    assert lost.exists()
    assert {path: path.stat().st_mtime_ns for path in others} == others


class Reads:
    """Takes ``x``. Once an instance asks it to break, it fails with all of them, as with a device after a failed assertion."""

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


def shard(*instances: dict[str, int]) -> list[tuple[str, str]]:
    return [("a.jsonl", json.dumps(one)) for one in instances]


def test_an_instance_that_the_model_fails_at_is_not_the_end_of_the_others() -> None:
    predictions, errors = batch.predict_shard(Reads(), shard({"x": 1}, {"y": 2}, {"x": 3}), 2, [])
    assert [one["prediction"] for one in predictions] == [1, 3]
    assert errors == [{"file": "a.jsonl", "instance": {"y": 2}, "error": "the model failed: KeyError: 'x'"}]


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
    assert first["first_error"].startswith("no JSON: Expecting value")
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


def test_rows_of_csv_are_objects_with_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,name\n1,"a, b"\n2.5,\n')
    rows = [json.loads(text) for _, text in batch.read_rows([str(tmp_path / "a.csv")], "auto")]
    assert rows == [{"x": 1, "name": "a, b"}, {"x": 2.5, "name": ""}]
    as_arrays = [json.loads(text) for _, text in batch.read_rows([str(tmp_path / "a.csv")], "auto", "array")]
    assert as_arrays == [[1, "a, b"], [2.5, ""]]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("-7", -7), ("2.50", 2.5), ("1e-3", 0.001), ("0", 0), ("inf", float("inf")), ("00123", "00123"),
        ("1_000", "1_000"), ("1e999", "1e999"), ("+49", "+49"), ("\u0661", "\u0661"), (" 1", " 1"), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_a_cell_is_a_number_where_it_is_written_as_one(tmp_path: Path, cell: str, value: object) -> None:
    (tmp_path / "a.csv").write_text(f"x\n{cell}\n", encoding="utf-8")
    ((_, text),) = batch.read_rows([str(tmp_path / "a.csv")], "auto")
    found = json.loads(text)["x"]
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


def test_a_manifest_that_was_never_written_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("1\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "batch.json").touch()
    monkeypatch.setattr(batch, "_MANIFEST_WAIT_S", 0.0)
    run_batch(monkeypatch, tmp_path)
    assert json.loads((tmp_path / "out" / "batch.json").read_text())["files"] == 1


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: -1", b"411"),
        (b"Content-Length: \xb2", b"411"),  # a digit to Python's text, and none to its int
        (b"Content-Length: 1_0", b"411"),
        (b"Content-Length: " + b"9" * 5_000, b"411"),
        (b"Content-Length: 999999999999", b"413"),
        (b"Transfer-Encoding: chunked\r\n\r\n-5", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n0x5", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n\xb2", b"400"),
    ],
)
def test_a_length_that_is_none_is_refused(head: bytes, status: bytes) -> None:
    server = ModelServer(("127.0.0.1", 0), "/health", "/predict")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with socket.create_connection(server.server_address[:2], timeout=60) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
            assert connection.makefile("rb").readline().split()[1] == status
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
