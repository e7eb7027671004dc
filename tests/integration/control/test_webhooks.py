"""Events reach webhooks: signed, in order for each object, again after failures, and no address of our own network."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sqlalchemy import select
from standardwebhooks import Webhook as Verifier

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.events import append_event
from core.db.repositories.outgoing.webhooks import new_delivery
from core.db.tables import Base, Event, OutboxEvent, Project, Webhook, WebhookDelivery
from core.outgoing.networks import OutboundNetworks
from core.outgoing.signatures import new_webhook_secret
from core.secrets import seal
from scheduler.control.outgoing.webhooks import RETRY_DELAYS_S, WebhookDeliverer, distribute
from tests.integration.control.conftest import Plane

LOCAL = OutboundNetworks("127.0.0.0/8")


class Receiver:
    """An endpoint on this machine. ``answers``: statuses by the object, used up one after another; then 200."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.answers: dict[str, list[int]] = {}
        self.location = ""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.received.append((dict(self.headers.items()), body))
                time.sleep(delay_s)
                job = (json.loads(body)["data"].get("job") or {}).get("id", "")
                statuses = receiver.answers.get(job, [])
                self.send_response(statuses.pop(0) if statuses else 200)
                if receiver.location:
                    self.send_header("location", receiver.location)
                self.end_headers()
                self.wfile.write(b"thank you\0")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def types(self, job: str | None = None) -> list[str]:
        bodies = [json.loads(body) for _, body in self.received]
        return [body["type"] for body in bodies if job is None or (body["data"]["job"] or {}).get("id") == job]


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def add_webhook(plane, url, name="1", *, project="project-1", types=("job.*",)):
    secret = new_webhook_secret()
    with unit_of_work(plane.sessions) as session:
        session.add(
            Webhook(
                id=f"webhook-{name}", project_id=project, url=url, event_types=list(types), created_by="user-1",
                ciphertext=seal(plane.control.secret_key, project or "", f"webhook-{name}", secret),
                created_at=plane.engine.now, updated_at=plane.engine.now,
            )
        )  # fmt: skip
    return secret


def happen(plane, *kinds, job=None, project="project-1", **data):
    with unit_of_work(plane.sessions) as session:
        for kind in kinds:
            append_event(
                session, at=plane.engine.now, kind=kind, actor="test", project_id=project, job_id=job, data=data
            )


def deliver(plane, networks=LOCAL, name="1"):
    deliverer = WebhookDeliverer(plane.control, networks)
    with unit_of_work(plane.sessions, read_only=True) as session:
        has_outbox = session.execute(select(OutboxEvent.event_id)).first() is not None
    distribute(plane.control)
    deliverer.deliver(f"webhook-{name}")
    return has_outbox


def use_wall_clock(plane):
    """The verifier has no other clock."""
    plane.control = replace(plane.control, clock=lambda: datetime.now(UTC))


def deliveries(plane, name="1"):
    with unit_of_work(plane.sessions, read_only=True) as session:
        query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == f"webhook-{name}")
        return session.scalars(query.order_by(WebhookDelivery.id)).all()


def test_the_reference_library_verifies_what_arrives(plane, receiver):
    secret = add_webhook(plane, receiver.url)
    job = plane.submit("a")
    happen(plane, "job.failed", job=job, code=1)
    use_wall_clock(plane)
    deliver(plane)
    headers, body = receiver.received[0]
    message = Verifier(secret).verify(body, headers)
    assert message["type"] == "job.failed"
    assert message["data"]["job"] == {"id": job, "name": "a"}
    assert message["data"]["project"] == "default"
    assert message["data"]["details"] == {"code": 1}
    (row,) = deliveries(plane)
    assert (row.state, row.response_status, row.response_excerpt) == (
        "delivered",
        200,
        "thank you\N{REPLACEMENT CHARACTER}",
    )


def test_only_events_of_its_project_and_types_are_sent_and_none_without_webhooks(plane, receiver):
    happen(plane, "job.failed")
    assert not deliver(plane)
    with unit_of_work(plane.sessions) as session:
        session.add(Project(id="project-2", name="other", created_at=plane.engine.now, quota={}))
    add_webhook(plane, receiver.url, types=("job.*", "study.created"))
    add_webhook(plane, receiver.url, "all", project=None, types=("*",))
    happen(plane, "job.queued", "study.created", "study.deleted", "webhook.disabled")
    happen(plane, "job.queued", project="project-2")
    happen(plane, "node.ready", project=None)
    assert deliver(plane)
    assert [row.event_type for row in deliveries(plane)] == ["job.queued", "study.created"]
    expected = ["job.queued", "study.created", "study.deleted", "job.queued", "node.ready"]
    assert [row.event_type for row in deliveries(plane, "all")] == expected


def test_a_failure_holds_back_its_object_alone_and_is_tried_again_in_order(plane, receiver):
    add_webhook(plane, receiver.url)
    first, second = plane.submit("a"), plane.submit("b")
    receiver.answers[first] = [500, 302]
    happen(plane, "job.queued", "job.running", "job.failed", job=first)
    happen(plane, "job.queued", "job.running", job=second)
    deliver(plane)
    assert receiver.types(second) == ["job.queued", "job.running"]
    assert receiver.types(first) == ["job.queued"]
    head = deliveries(plane)[0]
    assert (head.state, head.attempts, head.error) == ("waiting", 1, "status 500")
    assert 5 <= (head.next_at - plane.engine.now).total_seconds() <= 6.25
    deliver(plane)
    assert receiver.types(first) == ["job.queued"]  # not due yet
    plane.engine.advance(timedelta(seconds=7))
    deliver(plane)
    assert "redirects are not followed" in deliveries(plane)[0].error
    plane.engine.advance(timedelta(seconds=40))
    deliver(plane)
    assert receiver.types(first) == ["job.queued"] * 3 + ["job.running", "job.failed"]
    tries = [
        headers["webhook-id"] for headers, body in receiver.received if json.loads(body)["data"]["job"]["id"] == first
    ]
    assert len(tries) == 5
    assert len(set(tries)) == 3


def test_a_delivery_is_dead_after_more_than_a_day_and_410_disables(plane, receiver):
    assert sum(RETRY_DELAYS_S) > 24 * 3600
    add_webhook(plane, "http://127.0.0.1:9/closed")
    happen(plane, "job.failed", job=plane.submit("a"))
    for _ in range(len(RETRY_DELAYS_S) + 1):
        deliver(plane)
        plane.engine.advance(timedelta(seconds=60_000))
    (row,) = deliveries(plane)
    assert (row.state, row.attempts) == ("dead", len(RETRY_DELAYS_S) + 1)
    assert plane.one(Event, kind="webhook.delivery_dead").project_id == "project-1"
    gone = plane.submit("b")
    receiver.answers[gone] = [410]
    add_webhook(plane, receiver.url, "gone")
    happen(plane, "job.failed", job=gone)
    deliver(plane, name="gone")
    assert not plane.one(Webhook, id="webhook-gone").is_enabled


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "10.1.2.3", "192.168.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[fd00::1]",
     "100.100.100.200", "0.0.0.1", "[64:ff9b::7f00:1]", "2130706433"],
)  # fmt: skip
def test_no_address_of_the_platforms_own_network_is_connected_to(plane, receiver, host):
    port = receiver.server.server_port
    add_webhook(plane, f"http://{host}:{port}/")
    happen(plane, "job.failed", job=plane.submit("a"))
    deliver(plane, OutboundNetworks())
    assert not receiver.received
    assert "inside the platform's network" in deliveries(plane)[0].error


def test_both_secrets_sign_after_a_rotation_until_it_is_over(plane, receiver):
    old = add_webhook(plane, receiver.url)
    new = new_webhook_secret()
    with unit_of_work(plane.sessions) as session:
        row = session.get_one(Webhook, "webhook-1")
        row.old_ciphertext, row.old_secret_until = row.ciphertext, plane.engine.now.replace(year=2090)
        row.ciphertext = seal(plane.control.secret_key, "project-1", row.id, new)
    happen(plane, "job.failed", job=plane.submit("a"))
    use_wall_clock(plane)
    deliver(plane)
    headers, body = receiver.received[0]
    assert Verifier(old).verify(body, headers) == Verifier(new).verify(body, headers)
    with pytest.raises(Exception, match="signature"):
        Verifier(new_webhook_secret()).verify(body, headers)


def test_a_slow_endpoint_does_not_delay_another(plane, receiver):
    slow = Receiver(delay_s=2.0)
    add_webhook(plane, slow.url, "0-slow")
    add_webhook(plane, receiver.url)
    happen(plane, "job.failed", job=plane.submit("a"))
    deliverer = WebhookDeliverer(plane.control, LOCAL)
    begin_s = time.monotonic()
    deliverer.work()
    while not receiver.received:
        time.sleep(0.02)
        assert time.monotonic() - begin_s < 1.5
    deliverer.close()
    slow.server.shutdown()
    slow.server.server_close()


def test_a_test_message_is_of_no_event(plane, receiver):
    add_webhook(plane, receiver.url)
    with unit_of_work(plane.sessions) as session:
        session.add(WebhookDelivery(**new_delivery("webhook-1", "webhook.test", '{"data": {}}', now=plane.engine.now)))
    deliver(plane)
    assert [row.state for row in deliveries(plane)] == ["delivered"]


_DELIVERS = """
import sys, time
from datetime import UTC, datetime

from core.db.engine import make_engine, make_sessions
from core.outgoing.networks import OutboundNetworks
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.outgoing.webhooks import WebhookDeliverer

url = sys.argv[1]
sessions = make_sessions(make_engine(url))
executor = FakeExecutor(FakeEngine())
control = ControlContext(sessions, executor, NoWakeup(), lambda: datetime.now(UTC), "embedded", b"k" * 32)
WebhookDeliverer(control, OutboundNetworks("127.0.0.0/8")).start()
time.sleep(60)
"""


def test_killed_deliverers_lose_nothing_and_keep_the_order(tmp_path):
    engine = make_engine(f"sqlite:///{tmp_path}/truth.sqlite3")
    Base.metadata.create_all(engine)
    plane = Plane(make_sessions(engine), tmp_path)
    receiver = Receiver(delay_s=0.03)
    add_webhook(plane, receiver.url)
    jobs = [plane.submit(f"j{number}") for number in range(4)]
    for number in range(15):
        for job in jobs:
            happen(plane, "job.delayed", job=job, number=number)
    for until in (10, 30, 60):
        deliverer = subprocess.Popen([sys.executable, "-c", _DELIVERS, str(engine.url)])
        deadline_s = time.monotonic() + 60
        while len({body for _, body in receiver.received}) < until and time.monotonic() < deadline_s:
            time.sleep(0.01)
        deliverer.kill()
        assert deliverer.wait() == -signal.SIGKILL
    receiver.server.shutdown()
    receiver.server.server_close()
    first = list(dict.fromkeys(body for _, body in receiver.received))
    for job in jobs:
        data = [json.loads(body)["data"] for body in first]
        assert [each["details"]["number"] for each in data if each["job"]["id"] == job] == list(range(15))
    engine.dispose()
