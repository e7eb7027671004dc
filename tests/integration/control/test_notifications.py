"""Notifications by Apprise: for whom an event is, digests, retries, and no address of our own network."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sqlalchemy import select

from core.db.engine import unit_of_work
from core.db.repositories.events import append_event
from core.db.repositories.outgoing.notifications import new_notification
from core.db.tables import Notification, NotificationChannel, Project, User
from core.secrets import seal
from scheduler.control.outgoing.notifications import Notifier, message_of
from scheduler.control.outgoing.webhooks import distribute


@pytest.fixture
def service():
    """A service that takes JSON; ``received`` has the title and the body of each message."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            received.append((message["title"], message["message"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.received = received
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def add_channel(plane, service, name="1", *, project=None, user=None, types=("job.*", "node.*")):
    url = f"json://ann:secret@localhost:{service.server_port}/"
    with unit_of_work(plane.sessions) as session:
        session.add(
            NotificationChannel(
                id=f"channel-{name}", project_id=project, user_id=user, event_types=list(types), shown="JSON",
                ciphertext=seal(plane.control.secret_key, project or user, f"channel-{name}", url),
                created_at=plane.engine.now,
            )
        )  # fmt: skip


def happen(plane, kind, *, job=None, project="project-1", reason="", **data):
    with unit_of_work(plane.sessions) as session:
        append_event(
            session, at=plane.engine.now, kind=kind, actor="test", project_id=project, job_id=job, reason=reason,
            data=data,
        )  # fmt: skip


def send(plane, name="1", networks="127.0.0.0/8,::1/128"):
    distribute(plane.control)
    Notifier(plane.control, networks).send(f"channel-{name}")


def texts(plane, name="1"):
    with unit_of_work(plane.sessions, read_only=True) as session:
        query = select(Notification.text).where(Notification.channel_id == f"channel-{name}")
        return session.scalars(query.order_by(Notification.id)).all()


def test_a_user_hears_of_own_jobs_a_project_of_its_own_and_an_admin_of_nodes(plane, service):
    with unit_of_work(plane.sessions) as session:
        session.add(User(id="user-2", name="root", is_admin=True, created_at=plane.engine.now))
        session.add(Project(id="project-2", name="other", created_at=plane.engine.now, quota={}))
    add_channel(plane, service, "user", user="user-1")
    add_channel(plane, service, "admin", user="user-2")
    add_channel(plane, service, "project", project="project-1")
    job = plane.submit("a")
    happen(plane, "job.failed", job=job, reason="Exit code 1.")
    happen(plane, "study.created")
    happen(plane, "job.failed", project="project-2")
    happen(plane, "node.unready", project=None, node="gpu-7", reason="It does not answer.")
    distribute(plane.control)
    failed = "job.failed: a (job-a) in default: Exit code 1."
    assert texts(plane, "user") == [failed]
    assert texts(plane, "project") == [failed]
    assert texts(plane, "admin") == ["node.unready: node gpu-7: It does not answer."]


def test_many_at_once_and_many_in_a_window_are_digests(plane, service):
    add_channel(plane, service, project="project-1")
    job = plane.submit("a")
    happen(plane, "job.queued", job=job)
    happen(plane, "job.failed", job=job)
    send(plane)
    assert service.received[0][0] == "Trainmaster: 2 notifications"
    with unit_of_work(plane.sessions) as session:
        for number in range(4):  # messages that were sent in the last minutes
            at = plane.engine.now - timedelta(seconds=60 + number)
            columns = new_notification("channel-1", "job.failed", "x", now=at, event_id=1_000 + number)
            session.add(Notification(**{**columns, "state": "sent", "finished_at": at}))
    happen(plane, "job.failed", job=job)
    happen(plane, "job.failed", job=job)
    send(plane)
    assert len(service.received) == 1  # enough for now
    plane.engine.advance(timedelta(minutes=10))
    send(plane)
    assert [title for title, _ in service.received] == ["Trainmaster: 2 notifications"] * 2
    assert message_of(["x: y"] * 25)[1].endswith("… and 5 more")


def test_an_address_of_our_own_network_is_refused_and_tried_again(plane, service):
    add_channel(plane, service, user="user-1")
    happen(plane, "job.failed", job=plane.submit("a"))
    send(plane, networks="")
    assert service.received == []
    row = plane.one(Notification, channel_id="channel-1")
    assert (row.state, row.attempts) == ("waiting", 1)
    assert "inside the platform's network" in row.error
    assert "secret" not in row.error
    plane.engine.advance(timedelta(seconds=6))
    send(plane)
    assert service.received == [("Trainmaster: job.failed", "job.failed: a (job-a) in default")]
    assert plane.one(Notification, channel_id="channel-1").state == "sent"
