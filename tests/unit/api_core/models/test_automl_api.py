"""AutoML over REST: what is decided from the data, what is refused before anything is created, and the leaderboard."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient
from trainmaster.wire.jobs import WaitReasonView

from api.automl.profiling import profile_data
from api.forecasts import service
from core.db import leases
from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.events import append_event
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Study, Trial
from core.domain.automl.columns import LEAK
from core.domain.metrics import Points
from core.domain.studies.states import TrialState
from core.storage.tree import Tree
from core.wakeups import TOPIC_STUDY

URL = "/api/v1/automl"
ROWS = [f"{'Paris' if place % 2 else 'Rome'},{place},{'yes' if place % 2 else 'no'}" for place in range(40)]


@pytest.fixture
def data(client: TestClient) -> Path:
    volumes = {one["name"]: one["root"] for one in client.get("/api/v1/volumes").json()["items"]}
    folder = Path(volumes["data"])
    (folder / "buyers.csv").write_text("\n".join(["city,age,bought", *ROWS]) + "\n")
    for name in ("cats", "dogs"):
        (folder / "pets" / name).mkdir(parents=True)
        for place in range(12):
            (folder / "pets" / name / f"{place}.png").touch()
    return folder


def test_a_table_becomes_a_study_whose_winner_is_registered(client: TestClient, data: Path, wakeup: Any) -> None:
    answer = client.post(URL, json={"data": "data/buyers.csv", "target": "bought", "budget": "10m", "parallel": 2})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["name"], made["kind"], made["task"], made["metric"]) == (
        "automl-buyers", "tabular", "classification", "accuracy",
    )  # fmt: skip
    assert (made["target"], made["data"], made["leaderboard"], made["winner"]) == (
        "bought",
        "data/buyers.csv",
        [],
        None,
    )
    assert wakeup.rings == [(TOPIC_STUDY, made["id"])]
    spec = client.get(f"/api/v1/studies/{made['id']}").json()["spec"]
    assert spec["winner"] == {"model": "automl-buyers", "path": None, "aliases": [], "arguments": ["--final"]}
    assert (spec["template"]["input"], spec["budget"]["max_time"], spec["budget"]["parallel"]) == ("data", 600, 2)
    assert "balance" not in spec["parameters"]


def test_a_plan_creates_nothing(client: TestClient, data: Path) -> None:
    answer = client.post(URL, json={"data": "data/pets", "dry_run": True})
    assert answer.status_code == 200, answer.text
    reported = answer.json()
    assert (reported["kind"], reported["families"], reported["id"]) == ("images", ["baseline", "cnn"], None)
    assert reported["notes"] == ["2 classes of images: cats, dogs."]
    assert client.get("/api/v1/studies").json()["items"] == []


def test_a_column_that_numbers_the_rows_is_reported_and_may_be_retained(client: TestClient, data: Path) -> None:
    rows = [f"{100 - place},{row}" for place, row in enumerate(ROWS)]
    (data / "people.csv").write_text("\n".join(["id,city,age,bought", *rows]) + "\n")
    requested = {"data": "data/people.csv", "target": "bought", "dry_run": True}

    def notes(**changes: Any) -> list[str]:
        reported = client.post(URL, json={**requested, **changes}).json()["notes"]
        return [note for note in reported if note.startswith("Column ") and "leaked" not in note]

    why = "it numbers the rows, which does not generalise to new rows. To use it as a feature, keep it"
    assert notes() == [f"Column {name} is left out: {why} (`--keep {name}`)." for name in ("id", "age")]
    retained = "Column age numbers the rows; it is used as `keep` names it."
    assert notes(keep=["age"]) == [f"Column id is left out: {why} (`--keep id`).", retained]
    made = client.post(URL, json={**requested, "keep": ["age"], "dry_run": False}).json()
    spec = client.get(f"/api/v1/studies/{made['id']}").json()["spec"]
    assert json.loads(spec["template"]["env"]["AUTOML_OPTIONS"])["keep"] == ["age"]


def test_images_in_folders_may_say_what_their_classes_are_called(client: TestClient, data: Path) -> None:
    reported = client.post(URL, json={"data": "data/pets", "target": "label", "dry_run": True}).json()
    assert (reported["kind"], reported["task"], reported["target"]) == ("images", "classification", "label")
    assert "The class of an image is the name of its folder; label is the name of the target." in reported["notes"]


@pytest.mark.parametrize("place", ["data/photos", "data/photos/labels.csv"])
def test_a_table_may_say_the_classes_of_images_beside_it(client: TestClient, data: Path, place: str) -> None:
    (data / "photos" / "all").mkdir(parents=True)
    rows = [f"all/{number}.png,{'cat' if number % 2 else 'dog'}" for number in range(24)]
    for number in range(24):
        (data / "photos" / "all" / f"{number}.png").touch()
    (data / "photos" / "labels.csv").write_text("\n".join(["image,label", *rows]) + "\n")
    reported = client.post(URL, json={"data": place, "target": "label"}).json()
    assert (reported["kind"], reported["families"]) == ("images", ["baseline", "cnn"])
    assert reported["notes"] == ["2 classes of images by the column label of labels.csv: cat, dog."]
    spec = client.get(f"/api/v1/studies/{reported['id']}").json()["spec"]
    options = json.loads(spec["template"]["env"]["AUTOML_OPTIONS"])
    assert (spec["template"]["input"], options["file"], options["target"]) == ("data/photos", "labels.csv", "label")
    requested = {"data": place, "target": "label", "dry_run": True}
    assert client.post(URL, json={**requested, "kind": "tabular"}).json()["kind"] == "tabular"  # who says so means it
    refused = client.post(URL, json={**requested, "target": "labell"})
    assert (refused.status_code, refused.json()["field"]) == (422, "target")
    assert "Did you mean 'label'?" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"target": "bougth"}, "target", "Did you mean 'bought'? The columns are city, age, bought."),
        ({"target": None}, "target", "name the column to predict"),
        ({"target": "age", "task": "classification"}, "target", "too many for classes"),
        ({"metric": "acuracy"}, "metric", "Did you mean accuracy?"),
        ({"metric": "rmse"}, "metric", "not a metric of classification"),
        ({"families": ["forrest"]}, "families", "Did you mean forest?"),
        ({"data": "data/pets", "target": None, "families": ["transfer"]}, "weights", "a pretrained backbone"),
        ({"weights": "data/x.pt"}, "weights", "only image models"),
        ({"keep": ["agee"]}, "keep", "Did you mean 'age'?"),
        ({"keep": ["bought"]}, "keep", "is the target"),
        ({"data": "data/pets", "target": None, "keep": ["x"]}, "keep", "columns of tables"),
        ({"budget": "1x"}, "budget", "not a duration"),
        ({"budget": "3s"}, "budget", "too little for a trial"),
        ({"data": "data/nothing.csv"}, "data", "does not exist"),
        ({"data": "nowhere/x.csv"}, "data", "no volume 'nowhere'"),
        ({"data": "data/pets/cats", "target": None}, "data", "one folder per class"),
        ({"data": "data/pets", "kind": "tabular"}, "data", "the folder has no table"),
        ({"kind": "images"}, "data", "no column of buyers.csv has paths of images relative to its folder"),
        ({"data": "data/pets", "target": None, "task": "regression"}, "task", "for tables"),
        ({"resources": {"cpus": 2}}, "resources.cpus", "unknown"),
        ({"image": "python:3"}, "image", "plain processes"),
    ],
)
def test_what_cannot_be_learnt_is_refused_with_its_field(
    client: TestClient, data: Path, changes: dict[str, Any], field: str, words: str
) -> None:
    body = {"data": "data/buyers.csv", "target": "bought", **changes}
    answer = client.post(URL, json={key: item for key, item in body.items() if item is not None})
    assert answer.status_code in (404, 422), answer.text
    reported = answer.json()
    assert reported["field"] == field, reported
    assert words in reported["detail"], reported
    assert client.get("/api/v1/studies").json()["items"] == []


def test_words_among_the_numbers_of_a_target_are_reported_or_refused(client: TestClient, data: Path) -> None:
    body = {"data": "data/buyers.csv", "target": "price", "task": "regression", "dry_run": True}
    rows = [f"{'Rome' if place % 2 else 'Paris'},{place}.5" for place in range(99)]
    (data / "buyers.csv").write_text("\n".join(["city,price", *rows, "Rome,sold"]) + "\n")
    reported = client.post(URL, json=body).json()
    assert "1 rows are left out: their price is not a number, such as 'sold'." in reported["notes"]
    (data / "buyers.csv").write_text("\n".join(["city,price", *rows, *["Rome,sold"] * 3]) + "\n")
    refused = client.post(URL, json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, "task")
    assert "3 rows have another value, such as 'sold'" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["city,age,bought", *ROWS[:10]], "10 rows have a value of bought; at least 20"),
        (["city,age,bought", *ROWS, "Rome,1"], "row 42: it has 2 cells, but the header has 3"),
        (["city,age,bought", *(f"Rome,{n},yes" for n in range(30))], "bought is yes in every row"),
        (["city,age,bought", *ROWS, "Rome,1,maybe"], "have fewer: maybe (1)"),
        (["city,age,bought"], "no rows"),
        (["bought"], "the first line of buyers.csv, 'bought', names fewer than two columns"),
        ([], "the first line of buyers.csv is empty"),
        (["city,city,bought", *ROWS], "two columns of buyers.csv are named city"),
        (["city,,bought", *ROWS], "column 2 of buyers.csv has no name"),
        (
            ["city,age,bought", *(f",{n},{'yes' if n % 2 else 'no'}" for n in range(60))],
            "all columns other than bought (city, age) are empty, constant",
        ),
        (
            ["city,note,bought", *(f"Rome,of {n},{'yes' if n % 2 else 'no'}" for n in range(60))],
            "there is no usable feature",
        ),
        (
            ["city;age;bought", *(f"R{n % 3};{n};1,{n:03}" for n in range(60))],
            "such as '1,000': remove thousands separators",
        ),
    ],
)
def test_a_table_that_says_too_little_is_refused(client: TestClient, data: Path, lines: list[str], words: str) -> None:
    (data / "buyers.csv").write_text("\n".join(lines) + "\n")
    answer = client.post(URL, json={"data": "data/buyers.csv", "target": "bought"})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_the_leaderboard_has_the_best_first_and_says_who_was_stopped(
    client: TestClient, data: Path, sessions: SessionFactory, submit: Any, clock: Any
) -> None:
    made = client.post(URL, json={"data": "data/buyers.csv", "target": "bought"}).json()
    scores = [
        ("baseline", 0.5, TrialState.SUCCEEDED),
        ("forest", 0.9, TrialState.SUCCEEDED),
        ("linear", 0.4, TrialState.STOPPED),
    ]
    jobs = [submit(name=f"trial-{number}") for number in (1, 2, 3)]
    with unit_of_work(sessions) as session:
        for number, (family, score, state) in enumerate(scores, start=1):
            session.add(
                Trial(
                    study_id=made["id"], number=number, job_id=jobs[number - 1], state=state.value, memo={}, reason="",
                    parameters={"family": family}, result={"accuracy": score}, created_at=clock.now, ended_at=clock.now,
                )
            )  # fmt: skip
        key = StreamKey(jobs[1], 1, "worker", 0)
        add_metrics(session, key, {"accuracy_spread": Points([1], [0], [0.02])}, now=clock.now)
        leak = LEAK.format(name="code")
        for kind, reason in (("train.note", leak), ("train.note", "done"), ("train.note", leak)):
            append_event(session, at=clock.now, kind=kind, actor="runtime:worker-0", job_id=jobs[1], reason=reason)
    assert client.get(f"{URL}/{made['id']}").json()["notes"] == [*made["notes"], leak]
    board = client.get(f"{URL}/{made['id']}").json()["leaderboard"]
    assert [(row["rank"], row["trial"], row["family"], row["is_whole"]) for row in board] == [
        (1, 2, "forest", True), (2, 1, "baseline", True), (3, 3, "linear", False),
    ]  # fmt: skip
    assert [row["spread"] for row in board] == [0.02, None, None]
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(spec={**session.get_one(Study, made["id"]).spec, "template": None}))
    assert client.get(f"{URL}/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    "options",
    ["{}", '{"kind": "sounds", "task": "classification"}', '{"kind": "images", "task": "classification", "notes": 5}'],
)
def test_a_study_with_the_label_and_strange_options_is_no_automl_study(
    client: TestClient, data: Path, sessions: SessionFactory, options: str
) -> None:
    made = client.post(URL, json={"data": "data/buyers.csv", "target": "bought"}).json()
    with unit_of_work(sessions) as session:
        spec = session.get_one(Study, made["id"]).spec
        template = {**spec["template"], "env": {"AUTOML_OPTIONS": options}}
        session.execute(update(Study).values(spec={**spec, "template": template}))
    answer = client.get(f"{URL}/{made['id']}")
    assert (answer.status_code, "is not an AutoML study" in answer.json()["detail"]) == (404, True)


def test_a_clone_without_families_is_no_automl_study(client: TestClient, data: Path, sessions: SessionFactory) -> None:
    made = client.post(URL, json={"data": "data/buyers.csv", "target": "bought"}).json()
    with unit_of_work(sessions) as session:
        spec = session.get_one(Study, made["id"]).spec
        parameters = {"x": {"type": "float", "min": 0, "max": 1}}
        session.execute(update(Study).values(spec={**spec, "parameters": parameters, "initial": []}))
    assert client.get(f"{URL}/{made['id']}").status_code == 404


def test_a_quoted_cell_that_is_cut_where_the_look_ends_is_no_fault(
    client: TestClient, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.automl.profiling.READ_LIMIT_BYTES", 1000)
    text = "\n".join(["city,age,bought", *ROWS]) + "\n"
    cut = text + '"' + "a\n" * 1000 + '",1,no\n'
    (data / "buyers.csv").write_text(cut)
    answer = client.post(URL, json={"data": "data/buyers.csv", "target": "bought", "dry_run": True})
    assert answer.status_code == 200, answer.text
    assert "Only the beginning of the table was profiled; the trials read all of it." in answer.json()["notes"]


def test_a_damaged_packed_table_is_refused(client: TestClient, data: Path) -> None:
    packed = bytearray(gzip.compress("\n".join(["city,age,bought", *ROWS]).encode()))
    packed[20:40] = b"\xff" * 20
    (data / "buyers.csv.gz").write_bytes(packed)
    answer = client.post(URL, json={"data": "data/buyers.csv.gz", "target": "bought"})
    assert (answer.status_code, answer.json()["field"]) == (422, "data"), answer.text
    assert "buyers.csv.gz cannot be read" in answer.json()["detail"]


def test_images_are_counted_no_further_than_is_needed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.automl.profiling.FILE_COUNT_LIMIT", 5)
    monkeypatch.setattr("api.automl.profiling.ENTRY_LIMIT", 8)
    (data / "pets" / "mixed").mkdir()
    for place in range(30):
        (data / "pets" / "mixed" / f"{place}.txt").touch()
    seen = profile_data(Tree(data), "pets", kind=None, target=None)
    assert seen.classes == (("cats", 5), ("dogs", 5))


def test_less_than_twenty_images_are_refused(client: TestClient, data: Path) -> None:
    for place in range(6, 12):
        (data / "pets" / "cats" / f"{place}.png").unlink()
    answer = client.post(URL, json={"data": "data/pets"})
    assert (answer.status_code, answer.json()["field"]) == (422, "data")
    assert "18 images" in answer.json()["detail"]


def test_the_same_key_makes_no_second_study(client: TestClient, data: Path) -> None:
    body = {"data": "data/buyers.csv", "target": "bought"}
    first, second = (client.post(URL, json=body, headers={"Idempotency-Key": "once"}).json() for _ in range(2))
    assert first["id"] == second["id"]


@pytest.mark.parametrize(
    ("low", "baseline", "is_doubted"), [(0.48, 0.5, True), (0.5, 0.5, True), (0.51, 0.5, False), (0.48, None, False)]
)
def test_a_winner_that_is_not_surely_better_than_the_baseline_is_reported(
    client: TestClient,
    data: Path,
    sessions: SessionFactory,
    submit: Any,
    clock: Any,
    low: float,
    baseline: float | None,
    is_doubted: bool,
) -> None:
    study = client.post(URL, json={"data": "data/buyers.csv", "target": "bought"}).json()["id"]
    job = submit(name="winner")
    reported = {"accuracy": 0.62, "accuracy_low": low, "accuracy_high": 0.8, "rows": 16.0}
    if baseline is not None:
        reported["accuracy_baseline"] = baseline
    with unit_of_work(sessions) as session:
        session.get_one(Study, study).best_trial = {"trial": 1, "job": job, "version": "none"}
        figures = {f"test_{name}": Points([1], [0], [value]) for name, value in reported.items()}
        add_metrics(session, StreamKey(job, 1, "worker", 0), figures, now=clock.now)
    test = client.get(f"{URL}/{study}").json()["test"]
    assert (test["baseline"], test["metrics"]) == (baseline, {"accuracy": 0.62})
    assert test["hint"].startswith("Not significantly better than the baseline") is is_doubted


def test_of_a_test_without_an_interval_it_is_reported_why(
    client: TestClient, data: Path, sessions: SessionFactory, submit: Any, clock: Any
) -> None:
    study = client.post(URL, json={"data": "data/buyers.csv", "target": "bought"}).json()["id"]
    job = submit(name="winner")

    def test_of(**reported: float) -> dict[str, Any]:
        with unit_of_work(sessions) as session:
            session.get_one(Study, study).best_trial = {"trial": 1, "job": job, "version": "none"}
            figures = {f"test_{name}": Points([1], [0], [value]) for name, value in reported.items()}
            add_metrics(session, StreamKey(job, 1, "worker", 0), figures, now=clock.now)
        found: dict[str, Any] = client.get(f"{URL}/{study}").json()["test"]
        return found

    for reported in ({"accuracy": 1.0, "rows": 24.0}, {"accuracy_low": 1.0, "accuracy_high": 1.0}):
        test = test_of(**reported)
        assert (test["low"], test["high"]) == (None, None)
        assert test["hint"].startswith("There is no 95 % confidence interval")
    assert test_of(accuracy_baseline=1.0)["hint"].startswith("Not better than the baseline")


def test_a_class_of_which_the_test_leaves_too_few_is_refused_before_any_trial(client: TestClient, data: Path) -> None:
    (data / "buyers.csv").write_text("\n".join(["city,age,bought", *ROWS, *["Rome,1,maybe"] * 3]) + "\n")
    requested = {"data": "data/buyers.csv", "target": "bought", "dry_run": True}
    assert client.post(URL, json=requested).status_code == 200
    refused = client.post(URL, json={**requested, "test_fraction": 0.5})
    assert (refused.status_code, refused.json()["field"]) == (422, "test_fraction")
    assert "too few are left of maybe (1); each class needs 2 more" in refused.json()["detail"]
    many = client.post(URL, json={**requested, "test_fraction": 0.5, "max_rows": 30})
    assert many.status_code == 200  # of a sample nothing is known before it is drawn


def test_what_leaks_the_target_stands_on_the_leaderboard(client: TestClient, data: Path) -> None:
    rows = [f'{"x" if n % 3 else "y"},{n % 7},{"yes" if n % 3 else "no"},"{n % 5},000"' for n in range(60)]
    (data / "buyers.csv").write_text("\n".join(["code,age,bought,income", *rows]) + "\n")
    made = client.post(URL, json={"data": "data/buyers.csv", "target": "bought"}).json()
    notes = client.get(f"{URL}/{made['id']}").json()["notes"]
    (leak,) = [note for note in notes if "leaked" in note]
    assert leak.startswith("Column code looks as if it leaked the target")
    assert [
        note for note in notes if note.startswith("Column income is read as text: its values are written like '0,000'")
    ]
    numbers = [f"{n % 7},{n}.5,{n}.50" for n in range(60)]
    (data / "prices.csv").write_text("\n".join(["age,paid,price", *numbers]) + "\n")
    reported = client.post(URL, json={"data": "data/prices.csv", "target": "price", "dry_run": True}).json()["notes"]
    assert [note.split()[1] for note in reported if "leaked" in note] == ["paid"]


def test_what_is_called_parquet_and_is_none_is_refused(client: TestClient, data: Path) -> None:
    (data / "t.parquet").write_bytes(b"PAR1 and then it broke off")
    refused = client.post(URL, json={"data": "data/t.parquet", "target": "x", "task": "regression"})
    assert (refused.status_code, refused.json()["field"]) == (422, "data")
    assert "t.parquet is not a Parquet file, or is incomplete" in refused.json()["detail"]


def test_what_no_node_could_hold_is_refused_unless_nodes_are_to_come(
    client: TestClient, data: Path, monkeypatch: pytest.MonkeyPatch, sessions: SessionFactory, clock: Any
) -> None:
    assert data.is_dir()
    reason = WaitReasonView(code="never_fits", sentence="no node has 64 GPUs.", numbers={"short_of": ["gpus"]})

    async def forecast(*_: Any) -> Any:
        return SimpleNamespace(wait_reason=reason)

    body = {"data": "data/buyers.csv", "target": "bought", "resources": {"gpus": 64}}
    key = {"Idempotency-Key": "before"}
    made = client.post(URL, json=body, headers=key).json()
    monkeypatch.setattr(service, "forecast", forecast)
    with unit_of_work(sessions) as session:
        leases.mark(session, leases.TICK_DONE, holder="test", now=clock.now)
    for more in ({}, {"dry_run": True}):
        refused = client.post(URL, json={**body, **more})
        assert (refused.status_code, refused.json()["field"]) == (422, "resources.gpus")
        (reported,) = refused.json()["errors"]
        assert reported["message"] == "no trial could ever start: no node has 64 GPUs"
        assert reported["hint"] == "create it with `wait_for_nodes` if such a node is to come"
    assert client.post(URL, json={**body, "wait_for_nodes": True}).status_code == 201
    again = client.post(URL, json=body, headers=key)
    assert (again.status_code, again.json()["id"]) == (201, made["id"])
