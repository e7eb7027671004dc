"""``python -m embedded up|down``: what ``trainmaster up`` and ``trainmaster down`` run."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from embedded.errors import CannotStart, NothingRuns
from embedded.lock import STOP_WITHIN_S, is_locked, read_up_file

CANCEL_WITHIN_S = 120.0
_LIVE = "&".join(f"state={state}" for state in ("queued", "starting", "running", "paused", "cancelling"))


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 success, 6 if a platform runs already, 3 if none runs, else 1; errors print a sentence on
    stderr.
    """
    options = _parse(argv)
    home: Path = options.home.expanduser().absolute()
    try:
        if options.verb == "up":
            # The supervisor's imports, more than a second, are not needed to stop it.
            from embedded.supervisor import Supervisor, UpOptions

            _log_to(home)
            Supervisor(UpOptions(home, options.host, options.port, options.executor)).run()
        else:
            outcome = _down(home, cancel_jobs=options.jobs == "cancel")
            print(json.dumps(outcome))  # noqa: T201 (read by the command line)
    except CannotStart as error:
        print(error, file=sys.stderr)  # noqa: T201 (the command line's own output)
        return error.exit_code
    except OSError as error:
        # A full disk or a removed folder.
        print(f"{error.strerror or error}: {error.filename or home}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m embedded", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    default_home = Path(os.environ.get("TRAINMASTER_HOME") or Path.home() / ".trainmaster")
    up = verbs.add_parser("up", help="start and stay in the foreground")
    up.add_argument("--home", type=Path, default=default_home)
    up.add_argument("--host", default="127.0.0.1")
    up.add_argument("--port", type=int, default=8765)
    up.add_argument(
        "--executor",
        choices=("process", "docker", "kubernetes"),
        default=os.environ.get("TRAINMASTER_EXECUTOR") or "process",
    )
    down = verbs.add_parser("down", help="stop the platform of a data folder")
    down.add_argument("--home", type=Path, default=default_home)
    down.add_argument("--jobs", choices=("keep", "cancel"), default="keep")
    return parser.parse_args(argv)


def _log_to(home: Path) -> None:
    import structlog

    try:
        (home / "logs").mkdir(parents=True, exist_ok=True)
        stream = (home / "logs" / "supervisor.log").open("a", encoding="utf-8")
    except OSError as error:
        raise CannotStart(
            f"The data folder {home} cannot be written ({error.strerror}); choose another one with --home."
        ) from error
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=stream),
    )


def _down(home: Path, *, cancel_jobs: bool) -> dict[str, list[str]]:
    """Names of jobs: ``cancelled``, or ``live`` ones that keep running."""
    running = read_up_file(home)
    if not is_locked(home):
        raise NothingRuns(f"No platform runs on {home}.")
    if running is None:
        raise CannotStart(f"The platform on {home} is just starting; try again in a moment.")
    url = running["url"]
    outcome = {"cancelled": _cancel_all(url, home)} if cancel_jobs else {"live": _live(url, home)}
    os.kill(int(running["pid"]), signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_WITHIN_S + 10
    while is_locked(home):
        if time.monotonic() > deadline_s:
            raise CannotStart(f"Process {running['pid']} did not stop; end it with `kill -9 {running['pid']}`.")
        time.sleep(0.05)  # noqa: TID251 (polls the lock, with a deadline)
    return outcome


def _live(url: str, home: Path) -> list[str]:
    """Names of live jobs; empty if the platform does not respond: it is stopped all the same."""
    try:
        return [job["name"] for job in _call(url, home, "GET", f"/api/v1/jobs?{_LIVE}&limit=100")["items"]]
    except (CannotStart, OSError, ValueError, KeyError):
        return []


def _cancel_all(url: str, home: Path) -> list[str]:
    """The names of the cancelled jobs, once all of them have ended."""
    deadline_s = time.monotonic() + CANCEL_WITHIN_S
    cancelled: dict[str, str] = {}
    while True:
        jobs = _call(url, home, "GET", f"/api/v1/jobs?{_LIVE}&limit=100")["items"]
        if not jobs:
            return list(cancelled.values())
        for job in jobs:
            if job["id"] not in cancelled:
                _call(url, home, "POST", f"/api/v1/jobs/{job['id']}/cancel", {"reason": "the platform is stopped"})
                cancelled[job["id"]] = job["name"]
        if time.monotonic() > deadline_s:
            raise CannotStart(
                f"{len(jobs)} {'job was' if len(jobs) == 1 else 'jobs were'} not cancelled after "
                f"{CANCEL_WITHIN_S:.0f} s; see `trainmaster list`."
            )
        time.sleep(0.2)  # noqa: TID251 (polls the jobs' states, with a deadline)


def _call(url: str, home: Path, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(  # noqa: S310 (our own address)
        url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {(home / 'token').read_text(encoding='utf-8').strip()}",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 409:
            return {}  # it ended meanwhile
        raise CannotStart(f"The platform refused to cancel its jobs: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
