"""The life of an endpoint, the same on every engine: deployed, updated and taken back under load, killed, scaled,
ended.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Of Vertex AI's rules for custom containers, and nothing of ours: it says what it was told, and reads its model.
OWN_SERVER = """
import json, os, pathlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
told = {name: value for name, value in os.environ.items() if name.startswith("AIP_")}
factor = int((pathlib.Path(told["AIP_STORAGE_URI"]) / "factor").read_text())
class Handler(BaseHTTPRequestHandler):
    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(200 if self.path == told["AIP_HEALTH_ROUTE"] else 404, {})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != told["AIP_PREDICT_ROUTE"]:
            return self.answer(404, {})
        self.answer(200, {"predictions": [factor * sum(one) for one in asked["instances"]], "told": told})
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("", int(told["AIP_HTTP_PORT"])), Handler).serve_forever()
"""


def save_models(folder: Path) -> None:
    """``one``: of scikit-learn, sums; ``ten``: of torch, ten times as much; ``own``: for ``OWN_SERVER``, three
    times.
    """
    import torch
    from sklearn.linear_model import LinearRegression
    from skops import io

    for name in ("one", "ten", "own"):
        (folder / name).mkdir(parents=True)
    io.dump(LinearRegression(fit_intercept=False).fit([[1, 0], [0, 1]], [1.0, 1.0]), folder / "one" / "model.skops")

    class Ten(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.sum(1) * 10

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is old
        torch.jit.script(Ten()).save(folder / "ten" / "model.pt")
    (folder / "own" / "factor").write_text("3")
    for path in folder.rglob("*"):  # whoever the replicas run as
        path.chmod(0o755 if path.is_dir() else 0o644)


class Load:
    """A few who ask without a pause; ``answers`` as they came."""

    def __init__(self, client: Any, endpoint: str, askers: int = 4) -> None:
        self.answers: list[int] = []
        self.lost: list[Exception] = []
        self._client, self._endpoint = client, endpoint
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(askers)]

    def _ask(self) -> None:
        while not self._stop.wait(0.1):
            try:
                self.answers.append(round(self._client.predict(self._endpoint, [[1, 1]])[0]))
            except Exception as error:  # noqa: BLE001 (what the load is for)
                self.lost.append(error)

    @contextmanager
    def going_on(self) -> Iterator[Load]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()


class Story:
    """``kill(job_id)``: end the replica of a job by SIGKILL. ``resources``: of a replica."""

    def __init__(
        self, platform: Any, eventually: Any, kill: Callable[[str], None], resources: dict[str, Any] | None = None
    ) -> None:
        self.client = platform.client
        self.eventually = eventually
        self.kill = kill
        self.resources = resources or {}

    def deploy(self, model: str, **fields: Any) -> None:
        self.client.deploy_model("sums", model, resources=self.resources, ready_timeout_s=300, **fields)

    def deployed(self, name: str = "default") -> Any:
        return next(one for one in self.client.get_endpoint("sums").deployments if one.name == name)

    def until_ready(self, revision: int, replicas: int, name: str = "default") -> list[Any]:
        """The replicas that serve."""

        def is_ready() -> bool:
            one = self.deployed(name)
            if one.state == "failed" or one.wanted != revision:
                pytest.fail(f"{one.state}, revision {one.wanted} is wanted: {one.note}\n{self.words(name)}")
            return bool(one.state == "ready" and one.ready == replicas == one.replicas and one.stable == revision)

        self.eventually(is_ready, within_s=300, what=f"revision {revision} is ready: {self.words(name)}")
        return [one for one in self.deployed(name).replica_list if one.state == "ready"]

    def words(self, name: str = "default") -> list[str]:
        return [f"{one.revision} {one.state} {one.job_state} {one.words}" for one in self.deployed(name).replica_list]

    def no_request_is_lost(self) -> None:
        """In an update and on the way back, while a few ask all the time."""
        with Load(self.client, "sums").going_on() as load:
            self.eventually(lambda: len(load.answers) >= 20, within_s=120, what="the load goes on")
            self.deploy("output/default/models/ten")
            self.until_ready(2, 2)
            self.eventually(lambda: 20 in load.answers[-8:], within_s=60, what="the new one answers")
            self.client.rollback_deployment("sums")
            self.until_ready(1, 2)
            before = len(load.answers)
            self.eventually(lambda: len(load.answers) >= before + 20, within_s=60, what="the load goes on")
        assert load.lost == []
        assert set(load.answers) == {2, 20}
        assert set(load.answers[-4:]) == {2}

    def a_killed_replica_is_replaced(self) -> None:
        killed, _ = self.until_ready(1, 2)
        self.kill(killed.job)

        def is_replaced() -> bool:
            ready = {one.job for one in self.deployed().replica_list if one.state == "ready"}
            return len(ready) == 2 and killed.job not in ready

        self.eventually(is_replaced, within_s=180, what=f"another one serves: {self.words()}")
        self.until_ready(1, 2)
        assert self.client.predict("sums", [[1, 2]]) == pytest.approx([3])
        assert self.deployed().wanted == 1

    def it_grows_and_shrinks(self) -> None:
        for replicas in (1, 0, 1):
            self.client.scale_deployment("sums", replicas)
            self.until_ready(1, replicas)
            self.eventually(
                lambda count=replicas: sum(one.state != "ended" for one in self.deployed().replica_list) == count,
                within_s=120,
                what=f"{replicas} run: {self.words()}",
            )
        assert self.client.predict("sums", [[1, 2]]) == pytest.approx([3])

    def a_server_of_ones_own_is_informed_what_vertex_tells(self, **server: Any) -> dict[str, str]:
        """``server``: its image, command and port. What it was told."""
        self.deploy(
            "output/default/models/own", deployment="own", traffic=0, health_route="/well", predict_route="/v1/ask",
            **server,
        )  # fmt: skip
        self.until_ready(1, 1, "own")
        assert self.client.predict("sums", [[1, 2]], deployment="own") == [9]
        raw = json.loads(self.client.raw_predict("sums", b'{"instances": [[1]]}', deployment="own"))
        reported: dict[str, str] = raw["told"]
        assert (reported["AIP_HEALTH_ROUTE"], reported["AIP_PREDICT_ROUTE"], reported["AIP_MODE"]) == (
            "/well", "/v1/ask", "PREDICTION",
        )  # fmt: skip
        return reported

    def a_batch_is_predicted(self, output: Path) -> None:
        (output / "questions").mkdir(mode=0o755)
        (output / "questions" / "a.jsonl").write_text("".join(f"[{n}, 1]\n" for n in range(25)) + '"none"\n')
        job = self.client.batch_predict(
            "output/default/models/ten", "output/default/questions", replicas=2, shard_size=10,
            output="output/default/answers", resources=self.resources,
        )  # fmt: skip
        done = self.client.wait_for_job(job.id, timeout_s=300)
        assert done.state == "succeeded", done.exit
        found = [
            json.loads(line) for path in sorted((output / "answers").glob("predictions-*")) for line in _lines(path)
        ]
        assert [one["prediction"] for one in found] == [10.0 * (n + 1) for n in range(25)]
        errors = [json.loads(line) for path in (output / "answers").glob("errors-*") for line in _lines(path)]
        assert [one["instance"] for one in errors] == ["none"]

    def it_is_deleted(self) -> None:
        self.client.delete_endpoint("sums")
        self.eventually(lambda: not list(self.client.list_endpoints()), within_s=120, what="it is gone")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def tell(story: Story, output: Path) -> None:
    """Of an endpoint whose replicas have the platform's own server. ``output``: the project's folder."""
    save_models(output / "models")
    story.client.create_endpoint("sums")
    story.deploy("output/default/models/one/model.skops", replicas=2)
    story.until_ready(1, 2)
    assert story.client.predict("sums", [[1, 2], [3, 4.5]]) == pytest.approx([3, 7.5])
    story.no_request_is_lost()
    story.a_killed_replica_is_replaced()
    story.it_grows_and_shrinks()
