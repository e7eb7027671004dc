from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.tensorboard.conftest import eventually, write_scalars

pytestmark = pytest.mark.xdist_group("tensorboard")


def is_gone(pid: int) -> bool:
    """Ended, or a zombie that nobody has asked for yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_jobs_show_side_by_side_in_a_page_that_is_separate(serve: Any) -> None:
    api = serve()
    link = api.link("one", "job-two")
    assert api.shown(link, "one/logs") == [1.0, 0.5]
    assert api.shown(link, "two/logs") == [2.0, 0.5]
    page = api.ask("GET", link, headers={"Cookie": "trainmaster_session=x", "Accept-Encoding": "gzip"})
    assert page.status_code == 200
    # Before all else, what stands for all that a page without an origin does not have.
    assert '<head><script src="trainmaster-stand-ins.js">' in page.text
    assert "url(/" not in page.text  # all that it loads is below its own address
    assert api.ask("GET", f"{link}trainmaster-stand-ins.js").headers["content-type"].startswith("text/javascript")
    policy = dict(part.partition(" ")[::2] for part in page.headers["content-security-policy"].split("; "))
    assert policy["sandbox"] == "allow-scripts allow-downloads"  # above all not allow-same-origin
    assert policy["connect-src"] == f"{api.url}{link} data:"
    assert policy["default-src"] == "'none'"
    assert "set-cookie" not in page.headers
    assert page.headers["referrer-policy"] == "no-referrer"
    # TensorBoard's page asks by POST, and with a header of its own.
    requested = api.ask(
        "OPTIONS",
        f"{link}data/plugin/timeseries/timeSeries",
        headers={"Origin": "null", "Access-Control-Request-Headers": "x-tensorboard-feature-flags"},
    )
    assert requested.headers["access-control-allow-headers"] == "x-tensorboard-feature-flags"
    assert requested.headers["access-control-allow-origin"] == "null"
    wanted = '[{"plugin": "scalars", "tag": "loss"}]'
    series = api.ask("POST", f"{link}data/plugin/timeseries/timeSeries", files={"requests": (None, wanted)})
    assert {run for one in series.json() for run in one["runToSeries"]} == {"one/logs", "two/logs"}
    # The same jobs share one, whoever asks, in whatever order.
    assert api.shown(api.link("two", "one"), "one/logs") == [1.0, 0.5]
    assert len(api.children()) == 1


def test_an_address_is_good_as_long_as_the_token_that_requested_it(serve: Any) -> None:
    api = serve()
    made = api.ask("POST", "/api/v1/tokens", json={"name": "x", "scopes": ["read"]}, headers=api.as_admin()).json()
    requested = api.ask(
        "POST",
        "/api/v1/tensorboards",
        json={"jobs": ["one"]},
        headers={"Authorization": f"Bearer {made['token']}"},
    )
    link = requested.json()["path"]
    assert api.ask("GET", link.rstrip("/")).headers["location"] == link
    assert api.shown(link, "one/logs") == [1.0, 0.5]
    assert api.ask("DELETE", f"/api/v1/tokens/{made['id']}", headers=api.as_admin()).status_code < 300

    def is_refused() -> bool:
        answer = api.ask("GET", f"{link}data/runs")
        return answer.status_code == 404 and "no longer valid" in answer.json()["detail"]

    eventually(is_refused, "the address is still good")


def test_links_among_event_files_lead_nowhere(serve: Any, tmp_path: Path) -> None:
    api = serve()
    secret = write_scalars(tmp_path / "elsewhere", "secret", [42.0])
    logs = api.output / "default" / api.jobs["one"] / "logs"
    for name, target in (("abs", secret), ("up", Path("../../job-two/logs/events.out.tfevents.1.host"))):
        (logs / name).mkdir()
        (logs / name / "events.out.tfevents.9.host").symlink_to(target)
    (logs / "folder").symlink_to(secret.parent)
    (logs / "circle").symlink_to("..")
    os.mkfifo(logs / "events.out.tfevents.8.pipe")
    write_scalars(logs / "zz-last", "loss", [3.0])
    link = api.link("one")
    assert api.shown(link, "one/logs/zz-last") == [3.0]  # read after the others
    tags = api.ask("GET", f"{link}data/plugin/scalars/tags").json()
    assert "secret" not in str(tags)
    assert {run for run, found in tags.items() if found} == {"one/logs", "one/logs/zz-last"}


def test_it_ends_when_nobody_looks_and_starts_with_the_next_look(serve: Any) -> None:
    api = serve(idle_s=0.5)
    link = api.link("one")
    assert api.ask("GET", f"{link}data/environment").status_code == 200
    eventually(lambda: not api.children(), "it does not end")
    assert api.shown(link, "one/logs") == [1.0, 0.5]


def test_another_set_of_jobs_takes_the_place_of_the_one_that_was_looked_at_longest_ago(serve: Any) -> None:
    api = serve(limit=1)
    one, both = api.link("one"), api.link("one", "two")
    assert api.ask("GET", f"{one}data/environment").status_code == 200
    (first,) = api.children()
    assert api.shown(both, "two/logs") == [2.0, 0.5]
    eventually(lambda: is_gone(first), "there are two")
    assert len(api.children()) == 1


def test_it_does_not_outlive_an_api_that_is_killed(serve: Any) -> None:
    api = serve()
    assert api.ask("GET", f"{api.link('one')}data/environment").status_code == 200
    (pid,) = api.children()
    folder = Path(f"/proc/{pid}/cwd").readlink()
    assert (folder / "socket").is_socket()
    # No port is open: nothing that it listens on is on the network.
    open_files = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            open_files.add(str(fd.readlink()))
    ports = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    assert not {f"socket:[{line.split()[9]}]" for lines in ports for line in lines} & open_files
    # The kernel keeps it from taking more memory than it may.
    limits = [line.split() for line in Path(f"/proc/{pid}/limits").read_text().splitlines()]
    assert [line[3] for line in limits if line[:3] == ["Max", "data", "size"]] == [str(2**29)]
    # Nor does it know what the platform knows.
    assert b"TRAINMASTER_" not in Path(f"/proc/{pid}/environ").read_bytes()
    os.kill(api.process.pid, signal.SIGKILL)
    api.process.wait()
    eventually(lambda: is_gone(pid), "an orphan")
    eventually(lambda: not folder.exists(), "its folder is left behind")
