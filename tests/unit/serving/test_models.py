"""The platform's server: what it reads without running anything, what it refuses, and how it answers."""

from __future__ import annotations

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
from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.http_server import PredictionServer
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


def test_several_models_or_none_are_reported_by_name(tmp_path: Path) -> None:
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
def requested() -> Iterator[Any]:
    server = PredictionServer(("127.0.0.1", 0), "/health", "/predict")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def probe_health(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=120)
        try:
            connection.request(method, path, body, encode_chunked=isinstance(body, list))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    probe_health.server = server  # type: ignore[attr-defined]
    yield probe_health
    server.shutdown()
    server.server_close()
    thread.join()


def test_it_is_ready_when_its_model_is(requested: Any) -> None:
    assert requested("GET", "/health") == (503, {"error": "the model is loading"})
    requested.server.model = Doubles()
    assert requested("GET", "/health")[0] == 200
    requested.server.is_shutting_down = True
    assert requested("GET", "/health")[0] == 503


def test_sigterm_during_loading_ends_at_once() -> None:
    """Otherwise a replica that nobody wants any more holds its place, and its GPU, for as long as a large model is
    read.
    """
    code = (
        "import argparse, threading\n"
        "from trainmaster_serving import http_server\n"
        "def read(*_):\n"
        "    print('reading', flush=True)\n"
        "    threading.Event().wait(60)\n"
        "http_server.load_model = read\n"
        "http_server.serve(argparse.Namespace(host='127.0.0.1', port=0, health_route='/health', "
        "predict_route='/predict', model='', model_file='', framework='auto', trust_code=False))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_it_answers_in_vertex_ais_shape(requested: Any) -> None:
    requested.server.model = Doubles()
    assert requested("POST", "/predict", '{"instances": [1, 2.5]}') == (200, {"predictions": [2, 5.0]})
    assert requested("POST", "/predict", '{"instances": [1], "parameters": {"by": 3}}') == (200, {"predictions": [3]})
    assert requested("POST", "/predict", [b'{"instances"', b": [4]}"]) == (200, {"predictions": [8]})
    assert requested("POST", "/predict", '{"instances": []}') == (200, {"predictions": []})


def test_metadata_is_returned_with_the_predictions(requested: Any) -> None:
    class Chances(Doubles):
        def metadata(self, parameters: Any) -> dict[str, Any]:
            return {"classes": ["no", "yes"]} if parameters else {}

    requested.server.model = Chances()
    answer = requested("POST", "/predict", '{"instances": [1], "parameters": {"by": 3}}')
    assert answer == (200, {"predictions": [3], "metadata": {"classes": ["no", "yes"]}})
    assert requested("POST", "/predict", '{"instances": [1]}') == (200, {"predictions": [2]})


def test_a_client_that_disconnects_is_no_failure_of_the_server(
    requested: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def predict(self, instances: Any, parameters: Any) -> list[Any]:
            begun.set()
            assert go_on.wait(60)
            return list(instances)

    requested.server.model = Slow()
    body = b'{"instances": [1]}'
    with socket.create_connection(requested.server.server_address) as asking:
        asking.sendall(b"POST /predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert begun.wait(60)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    go_on.set()
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(60)
    requested.server.model = Doubles()
    assert requested("POST", "/predict", '{"instances": [1]}') == (200, {"predictions": [2]})
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "words"),
    [("nonsense", "not JSON"), ("[1]", "must be an object"), ('{"instances": ["a"]}', "takes numbers")],
)
def test_a_bad_request_gets_the_reason(requested: Any, body: str, words: str) -> None:
    requested.server.model = Doubles()
    status, answer = requested("POST", "/predict", body)
    assert status == 400
    assert words in answer["error"]


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
    server = PredictionServer(("127.0.0.1", 0), "/health", "/predict")
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
