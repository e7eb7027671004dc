"""Who may do what: every route of the application, every kind of caller. A route that is not in the table fails."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine
from starlette.testclient import TestClient

from api.app import factory
from api.app.audited_routes import DOWNLOADS, EXCLUDED, IN_PIECES
from api.app.factory import create_app
from api.app.fair_use import TokenBuckets
from api.pages import PAGE_PATHS
from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.repositories import questions
from core.db.repositories.metrics.writes import NewMetricObject, StreamKey, add_metrics
from core.db.repositories.outgoing.webhooks import new_delivery
from core.db.repositories.questions import QuestionKind
from core.db.tables import (
    Base,
    BookingRow,
    BudgetRow,
    Membership,
    Node,
    NotificationChannel,
    PriceRow,
    RayJob,
    Secret,
    User,
    UserIdentity,
    VertexResource,
    Webhook,
    WebhookDelivery,
)
from core.settings import Settings
from core.wakeups import TOPIC_FORECAST, NoWakeup
from tests.databases import POSTGRES, empty, remember
from tests.unit.api_files.permissions.audit_checks import check_audit, unfold
from tests.unit.api_files.permissions.authorization import CALLERS, MATRIX, matrix_of
from tests.unit.api_files.permissions.rights import (
    ANY_READER,
    ANY_WRITER,
    ATTEMPT,
    OK,
    OPEN,
    PEOPLE,
    PLATFORM_ADMIN,
    PROJECT_ADMIN,
    VIEWER,
    Case,
    case,
)
from tests.unit.api_files.permissions.rights import OUT as _OUT
from tests.unit.api_files.permissions.rights_in_buckets import GCS
from tests.unit.api_files.permissions.rights_in_endpoints import ENDPOINTS, furnish_endpoints
from tests.unit.api_files.permissions.rights_in_jobs import CHECKPOINT, DATA, DIGEST, JOBS
from tests.unit.api_files.permissions.rights_in_kubeflow import KUBEFLOW, furnish_kubeflow
from tests.unit.api_files.permissions.rights_in_mlflow import MLFLOW, furnish_mlflow
from tests.unit.api_files.permissions.rights_in_models import MODELS, furnish_models
from tests.unit.api_files.permissions.rights_in_ray import RAY
from tests.unit.api_files.permissions.rights_in_scim import SCIM, furnish_scim
from tests.unit.api_files.permissions.rights_in_studies import STUDIES, furnish_studies
from tests.unit.api_files.permissions.rights_in_vertex import VERTEX
from tests.unit.api_files.permissions.rights_in_vertex_records import furnish_records
from tests.unit.api_files.permissions.rights_in_vertex_serving import WANTED, furnish_serving

Stage = tuple[Any, Callable[[], None]]


REPORT = {"role": "worker", "index": 0, "items": [{"seq": 1, "at": "2026-11-21T07:00:00Z", "kind": "heartbeat"}]}

ADMINS_OF_PROJECTS = {"owner": OK, "stranger": OK}

ROUTES: dict[str, Case] = {
    **JOBS,
    **STUDIES,
    **ENDPOINTS,
    **MODELS,
    "GET /api/v1/nodes": case(ANY_READER),
    "GET /api/v1/nodes/{node}": case(ANY_READER),
    "GET /api/v1/holders": case(ANY_READER),
    "DELETE /api/v1/nodes/{node}": case(PLATFORM_ADMIN, "/api/v1/nodes/node-gone"),
    "PUT /api/v1/nodes/{node}/labels": case(PLATFORM_ADMIN, json={"labels": {"pool": "fast"}}),
    "POST /api/v1/nodes/{node}/cordon": case(PLATFORM_ADMIN),
    "POST /api/v1/nodes/{node}/drain": case(PLATFORM_ADMIN),
    "POST /api/v1/nodes/{node}/uncordon": case(PLATFORM_ADMIN),
    "POST /api/v1/nodes/{node}/release": case(PLATFORM_ADMIN),
    "GET /api/v1/volumes": case(ANY_READER),
    "POST /api/v1/volumes": case(PLATFORM_ADMIN, json={"name": "claim", "kind": "pvc", "config": {"claim": "data"}}),
    "GET /api/v1/volumes/{volume}": case(VIEWER),
    "DELETE /api/v1/volumes/{volume}": case(PLATFORM_ADMIN),
    "PUT /api/v1/volumes/{volume}/grants/{grantee}": case(PLATFORM_ADMIN, json={"access": "read"}),
    "DELETE /api/v1/volumes/{volume}/grants/{grantee}": case(PLATFORM_ADMIN),
    "GET /api/v1/projects": case(ANY_READER),
    "POST /api/v1/projects": case(PLATFORM_ADMIN, json={"name": "speech"}),
    "GET /api/v1/projects/{project}": case(VIEWER),
    "PATCH /api/v1/projects/{project}": case(PROJECT_ADMIN, json={"description": "x"}),
    "DELETE /api/v1/projects/{project}": case(PROJECT_ADMIN, "/api/v1/projects/empty"),
    "GET /api/v1/projects/{project}/members": case(VIEWER),
    "PUT /api/v1/projects/{project}/members/{user}": case(PROJECT_ADMIN, json={"role": "member"}),
    "GET /api/v1/projects/{project}/service-accounts": case(VIEWER),
    "POST /api/v1/projects/{project}/service-accounts": case(PROJECT_ADMIN, json={"name": "nightly"}),
    "PATCH /api/v1/projects/{project}/service-accounts/{account}": case(PROJECT_ADMIN, json={"role": "viewer"}),
    "DELETE /api/v1/projects/{project}/service-accounts/{account}": case(PROJECT_ADMIN),
    "GET /api/v1/projects/{project}/service-accounts/{account}/tokens": case(PROJECT_ADMIN),
    "POST /api/v1/projects/{project}/service-accounts/{account}/tokens": case(PROJECT_ADMIN, json={"name": "nightly"}),
    "DELETE /api/v1/projects/{project}/service-accounts/{account}/tokens/{token_id}": case(
        PROJECT_ADMIN, "/api/v1/projects/vision/service-accounts/ci/tokens/token-of-service"
    ),
    "DELETE /api/v1/projects/{project}/members/{user}": case(PROJECT_ADMIN),
    "GET /api/v1/projects/{project}/secrets": case(VIEWER),
    "PUT /api/v1/projects/{project}/secrets/{name}": case(PROJECT_ADMIN, json={"value": "x"}),
    "DELETE /api/v1/projects/{project}/secrets/{name}": case(PROJECT_ADMIN),
    "GET /api/v1/queue": case(ANY_READER),
    "GET /api/v1/queue/running": case(ANY_READER),
    "GET /api/v1/shares": case(ANY_READER),
    "GET /api/v1/quotas": case(ANY_READER),
    "GET /api/v1/projects/{project}/quota": case(VIEWER),
    "GET /api/v1/projects/{project}/retention": case(VIEWER),
    "PATCH /api/v1/projects/{project}/retention": case(PROJECT_ADMIN, json={"keep": {"outputs": "30d"}}),
    "POST /api/v1/projects/{project}/retention/preview": case(VIEWER, json={"keep": {"outputs": "30d"}}),
    "PATCH /api/v1/projects/{project}/quota": case(PLATFORM_ADMIN, json={"limit": {"gpus": 4}}),
    "GET /api/v1/usage": case(ANY_READER),
    "GET /api/v1/usage.csv": case(ANY_READER),
    "GET /api/v1/prices": case(ANY_READER),
    "POST /api/v1/prices": case(PLATFORM_ADMIN, json={"resource": "gpu", "per_hour": "2.5"}),
    "DELETE /api/v1/prices/{price}": case(PLATFORM_ADMIN),
    "GET /api/v1/webhooks": case(ANY_READER),
    "POST /api/v1/webhooks": case(
        PROJECT_ADMIN, json={"project": "vision", "url": "https://example.com/hook", "event_types": ["job.*"]}
    ),
    "GET /api/v1/webhooks/{webhook}": case(PROJECT_ADMIN),
    "PATCH /api/v1/webhooks/{webhook}": case(PROJECT_ADMIN, json={"is_enabled": True}),
    "DELETE /api/v1/webhooks/{webhook}": case(PROJECT_ADMIN),
    "POST /api/v1/webhooks/{webhook}/rotate": case(PROJECT_ADMIN, json={}),
    "POST /api/v1/webhooks/{webhook}/test": case(PROJECT_ADMIN),
    "GET /api/v1/webhooks/{webhook}/deliveries": case(PROJECT_ADMIN),
    "POST /api/v1/webhooks/{webhook}/deliveries/{delivery}/replay": case(PROJECT_ADMIN),
    "GET /api/v1/notification-channels": case(ANY_READER),
    "POST /api/v1/notification-channels": case(PROJECT_ADMIN, json={"project": "vision", "url": "ntfys://topic"}),
    "PATCH /api/v1/notification-channels/{channel}": case(PROJECT_ADMIN, json={"is_enabled": True}),
    "DELETE /api/v1/notification-channels/{channel}": case(PROJECT_ADMIN),
    "POST /api/v1/notification-channels/{channel}/test": case(PROJECT_ADMIN),
    "GET /api/v1/notification-channels/{channel}/notifications": case(PROJECT_ADMIN),
    "GET /api/v1/budgets": case(ANY_READER),
    "GET /api/v1/projects/{project}/budget": case(VIEWER),
    "PUT /api/v1/projects/{project}/budget": case(PLATFORM_ADMIN, json={"per_month": "100"}),
    "DELETE /api/v1/projects/{project}/budget": case(PLATFORM_ADMIN),
    "POST /api/v1/simulations": case(PLATFORM_ADMIN, json={"days": 7}),
    "GET /api/v1/simulations/{simulation}": case({**PLATFORM_ADMIN, "root": 404}, "/api/v1/simulations/none"),
    "GET /api/v1/policy": case(ANY_READER),
    "GET /api/v1/vertex-table": case(ANY_READER),
    "GET /api/v1/vertex-table/machine": case(ANY_READER, "/api/v1/vertex-table/machine?machine_type=n1-standard-4"),
    "PUT /api/v1/vertex-table": case(
        PLATFORM_ADMIN, json={"generation": 0, "table": {"machines": {"n1-*": {"cpu": 4}}}}
    ),
    "PATCH /api/v1/policy": case(PLATFORM_ADMIN, json={"settings": {"time_slice": "1h"}}),
    "GET /api/v1/reservations": case(ANY_READER),
    "POST /api/v1/reservations": case(
        PLATFORM_ADMIN,
        json={"name": "week", "project": "vision", "nodes": ["node-a"], "ends_at": "2026-11-22T07:00:00Z"},
    ),
    "DELETE /api/v1/reservations/{reservation}": case(PLATFORM_ADMIN),
    "GET /api/v1/users": case(ANY_READER),
    "POST /api/v1/users": case(PLATFORM_ADMIN, json={"name": "fresh"}),
    "PATCH /api/v1/users/{user}": case(PLATFORM_ADMIN, json={"is_disabled": True}),
    "GET /api/v1/tokens": case(ANY_READER),
    "POST /api/v1/tokens": case(ANY_WRITER, json={"name": "x", "scopes": ["read"]}),
    # A token of the member's: to everybody else but platform admins it is not there.
    "DELETE /api/v1/tokens/{token_id}": case(
        {**ANY_WRITER, **dict.fromkeys(("stranger", "plain", "viewer", "owner"), 404)}
    ),
    "GET /api/v1/spec/schema": case(OPEN),
    "POST /api/v1/login/codes": case({**ANY_WRITER, "plain": 403}),
    "POST /api/v1/login": case(dict.fromkeys(PEOPLE, 401), json={"code": "no-code-of-ours"}),
    "GET /api/v1/login/providers": case(OPEN),
    # From no page of ours; then a provider that is not there, and a code that is none: whoever logs in there may.
    "POST /api/v1/login/providers/{provider}": case(dict.fromkeys(PEOPLE, 403), json={}),
    "POST /api/v1/login/providers/{provider}/session": case(dict.fromkeys(PEOPLE, 403), json={"state": "x"}),
    "POST /api/v1/login/providers/{provider}/device": case(
        dict.fromkeys(PEOPLE, 404), "/api/v1/login/providers/none/device"
    ),
    "POST /api/v1/login/providers/{provider}/token": case(dict.fromkeys(PEOPLE, 401), json={"device_code": "x"}),
    "GET /api/v1/users/{user}/identities": case({**PLATFORM_ADMIN, "viewer": OK}),
    "POST /api/v1/users/{user}/identities": case(PLATFORM_ADMIN, json={"provider": "lab", "subject": "s-2"}),
    "DELETE /api/v1/users/{user}/identities/{identity}": case(PLATFORM_ADMIN),
    "GET /api/v1/me": case(ANY_READER),
    "GET /api/v1/audit": case({**PLATFORM_ADMIN, **ADMINS_OF_PROJECTS}),
    "GET /api/v1/audit/export": case({**PLATFORM_ADMIN, **ADMINS_OF_PROJECTS}),
    "GET /api/v1/health": case(OPEN),
    "GET /api/v1/live": case(OPEN),
    "GET /api/v1/ready": case(OPEN),
    "POST /api/v1/runtime/report": case(ATTEMPT, json=REPORT),
    "POST /api/v1/runtime/metrics": case(ATTEMPT, json={"role": "worker", "index": 0, "series": []}),
    # Let in, and told that this job was submitted without code.
    "GET /api/v1/runtime/code": case({**ATTEMPT, "attempt": 404}),
    **MLFLOW,
    **RAY,
    **VERTEX,
    **GCS,
    **KUBEFLOW,
    **SCIM,
    "POST /api/v1/tensorboards": case(VIEWER, json={"jobs": ["job-1"]}),
    # The address is the right: whoever has none is told that it is good no more, with a token or without.
    **{
        f"{method} /tensorboard/{{secret}}/{{path:path}}": case(dict.fromkeys(PEOPLE, 404), "/tensorboard/no-such/data")
        for method in ("GET", "HEAD", "POST", "OPTIONS")
    },
    "GET /tensorboard/{secret}": case(dict.fromkeys(PEOPLE, 404), "/tensorboard/no-such"),
    "GET /metrics": case({**PLATFORM_ADMIN, "plain": OK}),
    # a page that holds nothing; what it shows, it asks for
    **{f"GET /{place}": case(OPEN) for place in ("", *PAGE_PATHS)},
    **{f"GET /{place}/{{below:path}}": case(OPEN, f"/{place}/x") for place in PAGE_PATHS},
    "GET /assets/{name}": case(OPEN, "/assets/index-1.js"),
    "GET /icon.svg": case(OPEN),
    "GET /start.js": case(OPEN),
    "POST /api/v1/session": case(dict.fromkeys(PEOPLE, 403), json={"code": "x"}),  # from no page of ours
    "DELETE /api/v1/session": case(_OUT),
    "GET /openapi.json": case(OPEN),
    "HEAD /openapi.json": case(OPEN),
}

FILLED = {
    "{job}": "job-1",
    "{study}": "study-1",
    "{endpoint}": "sums",
    "{deployment}": "default",
    "{number}": "1",
    "{model}": "digits",
    "{version}": "1",
    "{alias}": "beta",
    "{name}": "worker-0",
    "{digest}": DIGEST,
    "{node}": "node-a",
    "{volume}": "data",
    "{grantee}": "vision",
    "{project}": "vision",
    "{user}": "viewer",
    "{account}": "ci",
    "{token_id}": "token-of-member",
    "{reservation}": "reservation-1",
    "{price}": "price-1",
    "{webhook}": "webhook-1",
    "{channel}": "channel-1",
    "{delivery}": "1",
    "{provider}": "lab",
    "{identity}": "identity-1",
}


def _routes_of(routes: Iterable[Any]) -> Iterator[tuple[str, set[str]]]:
    """Paths and methods, also of routers that a router includes."""
    for route in routes:
        if hasattr(route, "original_router"):
            yield from _routes_of(route.original_router.routes)
        elif hasattr(route, "methods"):  # Ray's tail of a log is a WebSocket, with tests of its own
            yield route.path, route.methods


def all_routes() -> set[str]:
    found = set()
    for noun in (*factory.NOUNS, *factory.ROOTS):
        prefix = "" if noun in factory.ROOTS else factory.PREFIX
        for path, methods in _routes_of(importlib.import_module(f"api.{noun}").router.routes):
            found |= {f"{method} {prefix}{path}" for method in methods}
    app = create_app(Settings(secret_key=SecretStr("k" * 40)), wakeup=NoWakeup())
    for route in app.routes:
        found |= {f"{method} {getattr(route, 'path', '')}" for method in getattr(route, "methods", None) or ()}
    return found


def test_every_route_is_in_the_table_and_the_table_has_no_other() -> None:
    missing = sorted(all_routes() - ROUTES.keys())
    assert not missing, f"say in the table ROUTES who may use {missing}"
    assert not sorted(ROUTES.keys() - all_routes())


def test_the_authorization_matrix_in_the_repository_is_the_one_that_is_verified_here() -> None:
    renew = "python -m tests.unit.api_files.permissions.authorization"
    assert MATRIX.read_text() == matrix_of(ROUTES), f"what callers may do has changed: {renew}, and look at the diff"


def furnish(house: Any) -> None:
    conftest = importlib.import_module("tests.unit.api_files.conftest")
    conftest.furnish(house)
    with unit_of_work(house.sessions) as session:
        house.add_token(session, "member", "tm_reader", ("read",))
        house.add_token(session, "member", "tm_expired", ("read", "write"), expires_at=house.now - timedelta(days=1))
        house.add_token(session, "root", "tm_plain", ("read", "write"))
        house.add_project(session, "elsewhere", member="member")
        house.add_token(
            session, "member", "tm_elsewhere", ("read", "write", "admin"), project_ids=["project-elsewhere"]
        )
        house.add_token(session, "member", "tm_narrow", ("jobs:read",), project_ids=["project-vision"])
        house.add_user(session, "ci@vision")
        session.get_one(User, "user-ci@vision").service_project_id = "project-vision"
        session.add(Membership(project_id="project-vision", user_id="user-ci@vision", role="member"))
        house.add_token(session, "ci@vision", "tm_service", ("read", "write"))
        house.add_job(session, "job-paused", state="paused")
        house.add_job(session, "job-queued", state="queued")
        house.add_job(session, "job-done", state="succeeded")
        house.add_project(session, "empty", owner="admin", member="member", viewer="viewer")
        session.add(
            Node(
                name="node-gone",
                executor="fake",
                labels={},
                allocatable={"cpu_milli": 0, "memory_bytes": 0},
                gpus=[],
                is_ready=False,
                seen_at=house.now,
            )
        )
        session.add(
            BookingRow(
                id="reservation-1",
                name="later",
                project_id="project-vision",
                nodes=["node-a"],
                begins_at=house.now + timedelta(days=30),
                ends_at=house.now + timedelta(days=31),
                created_by="user-root",
                created_at=house.now,
            )
        )
        by_root = {"effective_from": house.now, "created_by": "user-root", "created_at": house.now}
        session.add(
            PriceRow(id="price-1", resource="gpu", gpu_model="", node_selector={}, micros_per_hour=1, **by_root)
        )
        updated = {"updated_by": "user-root", "updated_at": house.now}
        session.add(BudgetRow(project_id="project-vision", micros_per_month=1, action="warn", **updated))
        session.add(
            Webhook(
                id="webhook-1",
                project_id="project-vision",
                url="https://example.com/hook",
                event_types=["job.*"],
                ciphertext=b"x",
                created_by="user-root",
                created_at=house.now,
                updated_at=house.now,
            )
        )
        session.add(
            NotificationChannel(
                id="channel-1",
                project_id="project-vision",
                ciphertext=b"x",
                shown="ntfy",
                event_types=["job.*"],
                created_at=house.now,
            )
        )
        session.flush()
        session.add(WebhookDelivery(**new_delivery("webhook-1", "job.failed", "{}", now=house.now)))
        session.add(
            UserIdentity(
                id="identity-1",
                user_id="user-viewer",
                issuer="https://login.test",
                subject="s-1",
                provider="lab",
                created_at=house.now,
            )
        )
        furnish_mlflow(session, house.now)
        furnish_serving(session, house.now)
        furnish_studies(session, house.now)
        furnish_models(session, house.now)
        furnish_endpoints(session, house.now)
        furnish_kubeflow(session)
        furnish_scim(session, house.now)
        house.add_token(session, "root", "tm_scim", ("scim",))
        for job_id in ("job-over", "job-doomed", "job-doomed-too"):
            house.add_job(session, job_id, state="succeeded")
        session.flush()
        for collection, job_id in (
            ("customJobs", "job-1"),
            ("customJobs", "job-done"),
            ("trainingPipelines", "job-paused"),
            ("trainingPipelines", "job-over"),
            ("customJobs", "job-doomed"),
            ("trainingPipelines", "job-doomed-too"),
            ("batchPredictionJobs", "job-doomed"),
            ("batchPredictionJobs", "job-1"),
            ("batchPredictionJobs", "job-done"),
        ):
            session.add(
                VertexResource(
                    collection=collection,
                    id=job_id,
                    job_id=job_id,
                    project_id="project-vision",
                    location="us-central1",
                    display_name="x",
                    labels={},
                    body={**WANTED, "outputInfo": {}} if collection == "batchPredictionJobs" else {},
                    created_at=house.now,
                    deletion_requested_at=house.now if "doomed" in job_id else None,
                )
            )
        for submission_id, job_id in (("told", "job-1"), ("ended", "job-over")):
            session.add(
                RayJob(
                    project_id="project-vision",
                    submission_id=submission_id,
                    job_id=job_id,
                    body={"entrypoint": "true"},
                    created_at=house.now,
                )
            )
        seen = NewMetricObject("seen", "image", 1, 1, "image/png", b"1")
        add_metrics(session, StreamKey("job-1", 1, "worker", 0), {}, [seen], now=house.now)
        session.add(Secret(project_id="project-vision", name="worker_0", ciphertext=b"x", updated_at=house.now))
    furnish_records(house)


@dataclass
class PlannerBell:
    """Whoever asks the planner is answered: by nobody's plan, but at once."""

    sessions: SessionFactory
    clock: Callable[[], datetime]

    def notify(self, topic: str, key: str = "") -> None:
        if topic != TOPIC_FORECAST:
            return
        with unit_of_work(self.sessions) as session:
            forecast = {
                "places": [],
                "reason": None,
                "position": 1,
                "start": None,
                "options": [],
                "later": [],
                "victims": [],
            }
            now = self.clock()
            why = {
                "at": now.isoformat(),
                "verdict": "absent",
                "sentence": "is not there",
                "reason": None,
                "position": None,
                "places": [],
                "waiting": 0,
                "running": 0,
                "nodes": 0,
                "then": "",
            }
            reported = {
                QuestionKind.FORECAST: forecast,
                QuestionKind.EXPLANATION: why,
                QuestionKind.STUDY: {"trials": 0, "reason": "Not known."},
            }
            questions.answer(
                session, {one.id: reported[one.kind] for one in questions.unanswered(session, now, 10)}, now
            )


@contextmanager
def make_stage(folder: Path, engine: Engine) -> Iterator[Any]:
    """One furnished house for all tests of the module."""
    conftest = importlib.import_module("tests.unit.api_files.conftest")
    (folder / "home").mkdir()
    settings = Settings(
        home=folder / "home",
        secret_key=SecretStr("k" * 40),
        executor="fake",
        test_fake_executor=True,
        oidc_providers=SecretStr('[{"name": "lab", "issuer": "https://login.test", "client_id": "x", "scim": true}]'),
    )
    Base.metadata.create_all(engine)
    sessions = make_sessions(engine)
    wakeup = PlannerBell(sessions, lambda: house.now)
    app = create_app(settings, sessions=sessions, wakeup=wakeup, clock=lambda: house.now)
    app.state.fair_use.wrong_logins = TokenBuckets(1e9, 1e9)  # all come from one address
    unfold(app.state.audit_log)
    with TestClient(app, raise_server_exceptions=False, follow_redirects=False) as client:
        house = conftest.House(app, client, settings, app.state.context.sessions, folder / "output")
        furnish(house)
        house.log("job-1", 1, "worker-0", "line\n")
        pages = folder / "pages"
        (pages / "assets").mkdir(parents=True)
        for name in ("index.html", "icon.svg", "start.js", "assets/index-1.js"):
            (pages / name).write_text("x")
        for name in ("model.bin", "spare.bin"):
            (house.output / "vision/job-1" / name).write_bytes(b"1")
        write_checkpoint(house)
        for path in (
            "vision/job-done/model.bin",
            ".models/vision/version-1/a.txt",
            ".models/vision/version-1/model.skops",
        ):
            (house.output / path).parent.mkdir(parents=True, exist_ok=True)
            (house.output / path).write_bytes(b"1")
        artifacts = house.output / "vision/job-1/mlflow/runs/attempt-1"
        artifacts.mkdir(parents=True)
        (artifacts / "plot.png").write_bytes(b"1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("api.pages.WEB_BUILD", pages)
            yield house


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """The house, and a function that puts its database back as it was: PostgreSQL where there is one."""
    folder = tmp_path_factory.mktemp("house")
    stage = _stage_on_postgres(folder, request) if POSTGRES else _stage_on_sqlite(folder)
    yield from stage


def _stage_on_postgres(folder: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    engine = make_engine(request.getfixturevalue("postgres_database"))
    empty(engine)
    with make_stage(folder, engine) as house:
        restore_rows = remember(engine)

        def restore() -> None:
            restore_rows()
            forget(house)

        yield house, restore
    engine.dispose()


def _stage_on_sqlite(folder: Path) -> Iterator[Stage]:
    database, template = folder / "db.sqlite3", folder / "template.sqlite3"
    engine = make_engine(f"sqlite:///{database}")
    with make_stage(folder, engine) as house:
        engine.dispose()
        shutil.copy(database, template)

        def restore() -> None:
            engine.dispose()
            for suffix in ("-wal", "-shm"):
                Path(f"{database}{suffix}").unlink(missing_ok=True)
            shutil.copy(template, database)
            forget(house)

        yield house, restore
    engine.dispose()


def write_checkpoint(house: Any) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path = house.output / "vision/job-1" / CHECKPOINT["path"]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)


def forget(house: Any) -> None:
    """What the application keeps beside its database, and files that went with a request."""
    write_checkpoint(house)
    (house.output / "vision/job-1/spare.bin").write_bytes(b"1")
    (house.output / ".models/vision/version-served").mkdir(parents=True, exist_ok=True)
    (house.output / "vision/job-1/table.csv").write_text("x,y\n" + "".join(f"{n % 7},{n % 2}\n" for n in range(40)))
    (house.output / "vision/job-1/model.skops").write_bytes(b"")
    house.app.state.callers.clear()
    shutil.rmtree(house.settings.archive_dir, ignore_errors=True)


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_everybody_gets_what_they_may_and_nothing_else(stage: Stage, route: str) -> None:
    house, restore = stage
    method, _, path = route.partition(" ")
    wanted = ROUTES[route]
    for key, value in FILLED.items():
        path = path.replace(key, "worker_0" if key == "{name}" and "secrets" in path else value)
    path = wanted.path or path
    for who in CALLERS:
        if path.endswith(DIGEST):  # an upload that this caller began
            house.call(
                "root" if method == "GET" and who in _OUT else _uploader(who),
                "POST",
                "/archives",
                params={"digest": DIGEST, "size": len(DATA)},
            )
        more = dict(wanted.more)
        headers = {**house.auth(who), **more.pop("headers", {})}
        answer = house.client.request(method, path, headers=headers, **more)
        check_audit(house, route, who, answer)
        expected = wanted.expected(who, route)
        if expected == OK:
            assert answer.status_code < 400, f"{who}: {answer.status_code} {answer.text}"
        else:
            assert answer.status_code == expected, f"{who}: {answer.status_code} {answer.text}"
            if path.startswith("/mlflow"):
                assert answer.json()["message"].endswith("."), answer.text
            elif method != "HEAD" and path.startswith(("/api", "/tensorboard")):
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["detail"].endswith((".", "`")), answer.json()["detail"]
        if method not in ("GET", "HEAD") and answer.status_code < 400:  # what was refused has changed nothing
            restore()


def _uploader(who: str) -> str:
    # A token that only reads cannot begin an upload; its user can.
    return {"reader": "member", "narrow": "member"}.get(who, who)


def test_exceptions_of_the_audit_log_are_routes() -> None:
    assert not EXCLUDED.keys() - ROUTES.keys()
    assert not {f"GET {route}" for route in DOWNLOADS} - ROUTES.keys()
    assert not IN_PIECES - ROUTES.keys()


@pytest.mark.parametrize("who", ["stranger", "plain"])
def test_lists_show_nothing_of_projects_that_are_not_the_callers(stage: Stage, who: str) -> None:
    house, _ = stage
    for path in ("/jobs", "/events", "/projects", "/queue", "/queue/running", "/shares", "/quotas", "/reservations"):
        text = house.call(who, "GET", path).text
        assert "job-1" not in text
        assert "vision" not in text


def test_a_refusal_does_not_tell_whether_the_thing_exists(stage: Stage) -> None:
    house, _ = stage
    there = house.call("stranger", "GET", "/jobs/job-1").json()
    not_there = house.call("stranger", "GET", "/jobs/job-x").json()
    assert there["detail"].replace("job-1", "job-x") == not_there["detail"]
    there = house.call("stranger", "GET", "/projects/vision").json()
    not_there = house.call("stranger", "GET", "/projects/vizion").json()
    assert there["detail"].replace("vision", "vizion") == not_there["detail"]
