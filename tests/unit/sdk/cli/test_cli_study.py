"""study: what people are shown, in a pipe and on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import yaml
from rich.console import Console
from trainmaster.cli.jobs.spec_files import study_yaml
from trainmaster.cli.terminal import output
from trainmaster.studies import parse_study
from typer.testing import Result

Invoke = Callable[..., Result]
NOW = "2026-11-21T07:00:00Z"
TRIAL = {"number": 2, "state": "succeeded", "parameters": {"lr": 0.01, "optimizer": "sgd"}, "created_at": NOW}
BEST = {**TRIAL, "result": {"acc": 0.91}, "job": "job-02345678901234567890"}
FAILED = {**TRIAL, "number": 3, "state": "failed", "reason": "worker-0 failed with exit code 3.", "job": BEST["job"]}
SPEC = {
    "name": "digits",
    "template": {"name": "digits", "command": "python train.py", "roles": {"worker": {}}},
    "parameters": {"lr": {"type": "float", "min": 0.001, "max": 0.1}},
    "metrics": [{"name": "acc", "goal": "maximize"}],
    "budget": {"trials": 3},
}
STUDY = {
    "id": "study-1",
    "name": "digits",
    "project": "default",
    "user": "ann",
    "state": "succeeded",
    "metrics": ["acc"],
    "trials": {"succeeded": 1, "failed": 1},
    "budget_trials": 3,
    "best": BEST,
    "created_at": NOW,
    "spec": SPEC,
    "seed": 1,
}
FOUND = {"metrics": ["acc"], "trials": [BEST], "best_so_far": [[2, 0.91]]}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has answers go to a terminal that is so wide."""

    def of(width: int) -> None:
        monkeypatch.setattr(
            output, "answers", lambda: Console(width=width, force_terminal=True, color_system=None, highlight=False)
        )

    return of


@pytest.fixture(autouse=True)
def study(server: Any) -> None:
    server.on("GET", "/studies", {"items": [STUDY]})
    for ref in ("digits", "study-1"):
        server.on("GET", f"/studies/{ref}", STUDY)
        server.on("GET", f"/studies/{ref}/best", FOUND)
        server.on("GET", f"/studies/{ref}/trials", {"items": [BEST, FAILED]})


def test_a_terminal_shows_tables_with_numbers(cli: Invoke, terminal: Callable[[int], None]) -> None:
    terminal(100)
    done = cli("study", "show", "digits")
    assert done.exit_code == 0, done.stderr
    assert "2      succeeded" in done.stdout.replace("✓ ", "")


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_a_narrow_terminal_loses_no_column(width: int, cli: Invoke, terminal: Callable[[int], None]) -> None:
    terminal(width)
    shown = " ".join(cli("study", "show", "digits").stdout.split())
    assert all(word in shown for word in ("TRIAL", "STATE", "ACC", "JOB", "PARAMETERS", "REASON", "sgd", "exit"))


def test_a_terminal_has_no_column_of_sentences_where_there_is_none(
    cli: Invoke, server: Any, terminal: Callable[[int], None]
) -> None:
    server.on("GET", "/studies/study-1/trials", {"items": [BEST]})
    assert "REASON" in cli("study", "show", "digits").stdout
    terminal(100)
    assert "REASON" not in cli("study", "show", "digits").stdout


def test_a_long_reason_of_several_trials_is_shown_once(cli: Invoke, server: Any) -> None:
    why, ended = (
        "It never reported the metric 'acc'; " + "looked for it everywhere, " * 8,
        "All 3 trials were made and ended.",
    )
    trials = [
        {**FAILED, "number": number, "reason": reason}
        for number, reason in enumerate((why, why, ended, ended, "short"))
    ]
    server.on("GET", "/studies/digits", {**STUDY, "reason": ended})
    server.on("GET", "/studies/study-1/trials", {"items": trials})
    shown = cli("study", "show", "digits").stdout
    assert shown.count(why.strip()) == 1
    assert shown.count(ended) == 1
    assert shown.count("(1)") == 3
    assert shown.count("the study ended") == 2
    assert "short" in shown


def test_the_table_says_whose_checkpoint_it_was_and_no_state_that_is_not_decided(cli: Invoke, server: Any) -> None:
    waits = {**TRIAL, "state": "running", "number": 4, "job": BEST["job"], "job_state": "succeeded", "parent": 2}
    queued = {**waits, "number": 5, "job_state": "queued", "parent": None}
    server.on("GET", "/studies/study-1/trials", {"items": [{**FAILED, "parent": 2}, waits, queued]})
    failed, waiting, last = cli("study", "show", "digits").stdout.splitlines()[-3:]
    assert failed.endswith("resumes from trial 2. worker-0 failed with exit code 3.")
    # Its metric may come still, and without it the trial has failed.
    assert waiting.split()[:2] == ["4", "running"]
    assert waiting.endswith("resumes from trial 2. job ended, waiting for its metric")
    assert last.split()[:2] == ["5", "queued"]


def test_of_several_metrics_no_trial_is_reported_as_the_best(cli: Invoke, server: Any) -> None:
    assert "(best so far)" in cli("study", "watch", "digits").stdout
    spec = {**SPEC, "metrics": [{"name": name, "goal": "maximize"} for name in ("acc", "f1")]}
    server.on("GET", "/studies/digits", {**STUDY, "metrics": ["acc", "f1"], "spec": spec, "front_size": 1})
    shown = cli("study", "watch", "digits").stdout
    assert "trial 2 succeeded" in shown
    assert "best so far" not in shown


def test_the_canonical_spec_is_written_as_people_write_it() -> None:
    written = {
        "name": "digits",
        "project": "vision",
        "template": {"command": "python train.py", "max_run_time": "90m", "max_wait": 0.5, "grace": {"stop": "45s"}},
        "parameters": {
            "layers": {"type": "integer", "min": 1, "max": 8},
            "lr": {"type": "float", "min": 0.5, "max": 2},
        },
        "metric": "acc",
        "goal": "maximize",
        "budget": {"trials": 3, "max_time": "26h"},
    }
    spec = parse_study(written)
    text = study_yaml(spec)
    plain = yaml.safe_load(text)
    assert plain["parameters"]["layers"] == {"type": "integer", "min": 1, "max": 8}
    assert "min: 1\n" in text
    assert plain["budget"] == {"trials": 3, "max_time": "1d2h"}
    template = plain["template"]
    assert not {"name", "project"} & template.keys()
    assert (template["max_run_time"], template["max_wait"], template["grace"]) == ("1h30m", 0.5, {"stop": "45s"})
    assert parse_study(plain) == spec


def test_the_list_of_all_projects_says_which(cli: Invoke) -> None:
    assert cli("study").stdout.splitlines()[0].split() == ["NAME", "PROJECT", "ID", "STATE", "AGE", "TRIALS", "BEST"]
    assert "PROJECT" not in cli("study", "list", "-p", "default").stdout


def test_best_says_of_which_study_and_of_how_many_trials(cli: Invoke) -> None:
    assert cli("study", "best", "digits").stdout.splitlines() == [
        "Study      digits (study-1), succeeded, 2 of 3 ended (1 failed)",
        "Goal       maximize acc",
        "Trial      2 (job job-02345678901234567890)",
        "Result     acc 0.91",
        "lr         0.01",
        "optimizer  sgd",
    ]


def test_best_of_a_study_that_is_over_without_a_result_says_why_and_not_yet(cli: Invoke, server: Any) -> None:
    server.on("GET", "/studies/study-1/best", {**FOUND, "trials": []})
    for state, reason, printed in (
        ("running", "", "No trial has a result yet."),
        ("failed", "Its time of 25 s is over.", "No trial has a result. Its time of 25 s is over."),
        ("succeeded", "All is known.", "All is known."),
    ):
        server.on("GET", "/studies/digits", {**STUDY, "state": state, "reason": reason})
        assert cli("study", "best", "digits").stdout.splitlines() == [printed]


@pytest.mark.parametrize("command", ["best", "watch", "show", "stop"])
def test_who_names_one_of_several_is_reported(command: str, cli: Invoke, server: Any) -> None:
    server.on("GET", "/studies/digits", {**STUDY, "namesakes": ["study-0"]})
    server.on("POST", "/studies/digits/stop", {**STUDY, "namesakes": ["study-0"]})
    assert "named digits (study-0). The name refers to the newest" in cli("study", command, "digits").stderr


def test_watch_stays_with_the_study_that_the_name_meant(
    cli: Invoke, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster.cli.tuning.study_views.WATCH_S", 0.0)
    server.on("GET", "/studies/digits", {**STUDY, "state": "running"}, {**STUDY, "id": "study-9"})
    assert "digits (study-1)" in cli("study", "watch", "digits").stdout
    assert server.count("GET", "/studies/digits") == 1


def test_watch_tells_of_a_pause_once(cli: Invoke, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.cli.tuning.study_views.WATCH_S", 0.0)
    paused, running = {**STUDY, "state": "paused", "reason": "Ann did."}, {**STUDY, "state": "running", "reason": ""}
    server.on("GET", "/studies/digits", running)
    server.on("GET", "/studies/study-1", paused, paused, running, STUDY)
    assert cli("study", "watch", "digits").stderr.splitlines() == [
        "Paused. Ann did.",
        "Resumed.",
    ]


def test_a_study_that_is_not_there_is_reported_in_commands(cli: Invoke, server: Any, problem: Any) -> None:
    sentence = "There is no study 'x' that you may see; `GET /api/v1/studies` lists yours."
    server.on("GET", "/studies/x", problem(404, "not_found", sentence))
    assert "`trainmaster study list` lists yours" in cli("study", "show", "x").stderr
    other = "Study 'x' is no AutoML study; `GET /api/v1/studies/x` shows it."
    server.on("GET", "/automl/x", problem(404, "not_found", other))
    assert "`trainmaster study show x` shows it" in cli("automl", "show", "x").stderr


def test_what_may_be_extended_is_reported_as_options(cli: Invoke) -> None:
    done = cli("study", "extend", "digits")
    assert (done.exit_code, done.stderr) == (
        2,
        "Error: Say what to add: --trials, --max-time, --gpu-hours, --failed-trials or --parallel.\n",
    )


def test_the_way_out_of_a_refusal_is_reported_as_an_option(cli: Invoke, server: Any, problem: Any) -> None:
    mistake = {
        "path": "template.gpus",
        "message": "no trial could ever start",
        "hint": "create it with `wait_for_nodes`",
    }
    server.on("POST", "/studies", problem(422, "invalid_spec", "template.gpus: no trial", errors=[mistake]))
    done = cli("study", "create", "-", stdin="name: digits\n")
    assert done.stderr.startswith("Error: The study spec has a mistake:")
    assert "create it with --wait-for-nodes" in done.stderr


def test_of_a_deployment_that_is_refused_no_job_is_spoken(cli: Invoke, server: Any, problem: Any) -> None:
    mistake = {"path": "model", "message": "data/x.pt does not exist", "hint": None}
    refusal = problem(422, "invalid_spec", "model: data/x.pt does not exist", errors=[mistake])
    server.on("POST", "/projects/default/endpoints/digits/deployments", refusal)
    server.on("POST", "/projects/default/batch-predictions", refusal)
    server.on("POST", "/batch-predictions", refusal)
    assert cli("endpoint", "deploy", "digits", "data/x.pt").stderr.startswith(
        "Error: The deployment spec has a mistake"
    )
    reported = cli("batch-predict", "data/x.pt", "data/y").stderr
    assert reported.startswith("Error: The batch prediction spec has a mistake")


def test_a_deletion_is_requested_by_the_id_that_the_name_means(
    cli: Invoke, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    server.on("DELETE", "/studies/study-1", httpx.Response(204))
    assert cli("study", "delete", "digits", stdin="n\n").exit_code != 0
    assert server.count("DELETE", "/studies/study-1") == 0
    assert cli("study", "delete", "digits", stdin="y\n").exit_code == 0
    assert server.count("DELETE", "/studies/study-1") == 1


def test_a_clone_tells_that_the_winner_is_taken_over(cli: Invoke, server: Any) -> None:
    server.on("POST", "/studies/digits/clone", STUDY)
    assert "becomes a version" not in cli("study", "clone", "digits").stderr
    spec = {**SPEC, "winner": {"model": "classes", "aliases": ["best"]}}
    server.on("POST", "/studies/digits/clone", {**STUDY, "spec": spec})
    reported = " ".join(cli("study", "clone", "digits").stderr.split())
    assert (
        "will be registered as a version of the model classes, with the alias best unless it points to a better version"
        in reported
    )
    assert "`--set winner=null`" in reported


@pytest.mark.parametrize(
    ("option", "value", "reported"),
    [
        ("--test-fraction", "0.9", "must be from 0.05 to 0.5"),
        ("--image-size", "4", "must be from 8 to 512"),
        ("--kind", "pictures", "must be 'tabular' or 'images'"),
        ("--task", "clasification", "must be 'classification' or 'regression'"),
        ("--name", "Bad Name", "must be 1 to 63 letters, digits"),
    ],
)
def test_what_automl_does_not_take_is_reported_by_the_option_and_what_is_right(
    cli: Invoke, server: Any, option: str, value: str, reported: str
) -> None:
    done = cli("automl", "--data", "data/x.csv", "--target", "y", option, value)
    assert (done.exit_code, server.count("POST", "/automl")) == (2, 0)
    assert f"  {option}  {reported}" in done.stderr
    as_json = json.loads(cli("automl", "--data", "data/x.csv", option, value, "--json").stderr)
    assert as_json["errors"][0]["path"] == option[2:].replace("-", "_")  # programs know the fields


@pytest.mark.parametrize(
    ("field", "sentence", "reported"),
    [
        ("families", "families: 'x' is none of tabular: linear.", "Error: --family: 'x' is none of tabular: linear.\n"),
        (
            "task",
            "task: no. Say task classification, or mend.",
            "Error: --task: no. Say --task classification, or mend.\n",
        ),
        (
            "kind",
            "data: the control plane does not see volume far; state kind and, of tables, target and task.",
            (
                "Error: --data: the control plane does not see volume far; say --kind and, of tables, --target and "
                "--task.\n"
            ),
        ),
    ],
)
def test_what_the_server_refuses_of_automl_is_reported_by_the_option(
    cli: Invoke, server: Any, problem: Any, field: str, sentence: str, reported: str
) -> None:
    server.on("POST", "/automl", problem(422, "invalid_request", sentence, field=field))
    assert cli("automl", "--data", "data/x.csv", "--target", "y").stderr == reported
    mistake = {"path": "resources.cpu", "message": "not a quantity", "hint": None}
    server.on("POST", "/automl", problem(422, "invalid_spec", "resources.cpu: not a quantity.", errors=[mistake]))
    assert "  --cpu  not a quantity" in cli("automl", "--data", "data/x.csv", "--cpu", "x").stderr


def test_automl_sends_the_kind(cli: Invoke, server: Any, problem: Any) -> None:
    server.on("POST", "/automl", problem(422, "invalid_request", "no"))
    cli("automl", "--data", "far/photos", "--kind", "images")
    assert json.loads(server.requests[-1].content)["kind"] == "images"


def test_automl_that_no_node_could_hold_is_reported_by_its_option(server: Any, cli: Any, problem: Any) -> None:
    errors = [
        {"path": "resources.gpus", "message": "no trial could ever start", "hint": "create it with `wait_for_nodes`"}
    ]
    server.on("POST", "/automl", problem(422, "invalid_spec", "x", errors=errors))
    refused = cli("automl", "--data", "data/x.csv", "--target", "y", "--gpus", "64")
    assert refused.exit_code == 2
    assert "--gpus  no trial could ever start" in refused.stderr
    assert "create it with --wait-for-nodes" in refused.stderr
    cli("automl", "--data", "data/x.csv", "--target", "y", "--wait-for-nodes")
    bodies = [json.loads(one.content) for one in server.requests if one.method == "POST"]
    assert [one.get("wait_for_nodes") for one in bodies] == [None, True]


def test_why_trials_wait_is_shown(cli: Any, server: Any) -> None:
    reason = {"code": "no_room", "sentence": "Needs 2 CPUs; 1 CPU is free.", "numbers": {}}
    waits = {**STUDY, "state": "running", "trials": {"running": 2}, "waiting": 2, "wait_reason": reason}
    server.on("GET", "/studies/digits", waits)
    server.on("GET", "/studies/digits/trials", {"items": [], "next_cursor": None})
    assert "Waiting    Needs 2 CPUs; 1 CPU is free." in cli("study", "show", "digits").stdout
    never = {**waits, "wait_reason": reason | {"code": "never_fits"}, "note": "Its trials cannot start: needs 2 CPUs."}
    server.on("GET", "/studies/digits", never)
    assert "Waiting  " not in cli("study", "show", "digits").stdout  # the note says it
