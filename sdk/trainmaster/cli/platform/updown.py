"""``up`` and ``down``: the whole platform on this machine."""

from __future__ import annotations

import json as json_module
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from trainmaster.cli.platform.access import link_of
from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import ExitCode
from trainmaster.errors import NotConfigured, TrainmasterError

if TYPE_CHECKING:
    from types import FrameType

_PANEL = "Platform"
_PORT: Final = 8765
# Longer than the platform gives its processes: it knows best what it waits for, and says so.
_READY_WITHIN_S: Final = 180.0
_STOPPED_WITHIN_S: Final = 25.0
_STAGE: Final = "Starting: "  # how it says how far it is
_LOOK_EVERY_S: Final = 0.05
_NAMES_SHOWN: Final = 5
_NOT_INSTALLED: Final = (
    "The platform itself is not installed here, only its client; install the package `trainmaster-server` "
    "(in a clone of the repository: `pip install .`), or `trainmaster login URL` to a server elsewhere."
)
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Data folder; else TRAINMASTER_HOME or ~/.trainmaster."),
]


class Executor(StrEnum):
    """The engines that a platform runs jobs on."""

    PROCESS = "process"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"


class CannotStart(TrainmasterError):
    """The platform did not start or stop; it said why itself."""

    code = "cannot_start"


class AlreadyRuns(CannotStart):
    """The data folder has a platform."""

    code = "already_runs"


def register(root: typer.Typer) -> None:
    root.command(rich_help_panel=_PANEL)(up)
    root.command(rich_help_panel=_PANEL)(down)


def up(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help=f"Else {_PORT}; 0 takes any free one.")
    ] = None,
    executor: Annotated[
        Executor | None,
        typer.Option(
            "--executor",
            envvar="TRAINMASTER_EXECUTOR",
            help="What runs the jobs: plain processes or a container engine.",
        ),
    ] = None,
    home: Home = None,
    detach: Annotated[bool, typer.Option("--detach/--foreground", "-d", help="Leave it running and return.")] = False,
    json: options.Json = False,
) -> None:
    """Start the platform on this machine: API, scheduler and one node. Ctrl-C stops it; running jobs go on.

    Where it runs already, its address and a fresh login link are printed.
    """
    folder = _home(home)
    arguments = ["up", "--home", str(folder), "--host", host, "--port", str(_PORT if port is None else port)]
    if executor is not None:
        arguments += ["--executor", executor.value]
    with tempfile.TemporaryFile() as said, output.busy("Starting the platform"):
        # A session of its own: the terminal's Ctrl-C reaches us alone, and we say what happens before it stops.
        process = subprocess.Popen(
            _embedded(arguments), stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/", start_new_session=True
        )
        platform = Platform(process, folder, said)
        running: AlreadyRuns | None = None
        facts: dict[str, Any] = {}
        with _forwarded(process):
            try:
                facts = platform.await_ready()
            except AlreadyRuns as error:
                running = error
    if running is not None:
        _tell_running(folder, running, port=port, as_json=json)
        raise typer.Exit(0 if detach else ExitCode.CONFLICT)
    _tell_ready(facts, folder, as_json=json, detach=detach)
    if not detach:
        raise typer.Exit(platform.stay())


def down(
    home: Home = None,
    cancel_jobs: Annotated[
        bool, typer.Option("--cancel-jobs", help="Cancel live jobs first; else they go on and are adopted by `up`.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Stop the platform on this machine."""
    folder = _home(home)
    arguments = ["down", "--home", str(folder), "--jobs", "cancel" if cancel_jobs else "keep"]
    with output.busy("Stopping the platform"):
        result = subprocess.run(_embedded(arguments), capture_output=True, text=True, check=False, cwd="/")
    if result.returncode == ExitCode.UNREACHABLE:
        raise NotConfigured(_sentence(result.stderr))
    if result.returncode != 0:
        raise CannotStart(_sentence(result.stderr or result.stdout))
    told = json_module.loads(result.stdout or "{}")
    if json:
        output.print_json({"stopped": str(folder), **told})
        return
    cancelled, live = told.get("cancelled", []), told.get("live", [])
    if cancelled:
        output.say(
            f"Stopped, after {output.count(len(cancelled), 'job')} {_were(cancelled)} cancelled: {_some(cancelled)}."
        )
    elif live:
        output.say(
            f"Stopped. {output.count(len(live), 'live job')} ({_some(live)}): what runs goes on by itself, what waits "
            "keeps its place; `trainmaster up` adopts them."
        )
    else:
        output.say("Stopped. No job was live.")


def _were(names: list[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")


def _home(home: Path | None) -> Path:
    from trainmaster.contexts import home_path

    return (home.expanduser() if home is not None else home_path()).absolute()


def _embedded(arguments: list[str]) -> list[str]:
    from importlib.util import find_spec

    if find_spec("embedded") is None:
        raise CannotStart(_NOT_INSTALLED)
    # -P: a folder named `embedded` or `api` where the user stands must not be taken for ours.
    return [sys.executable, "-P", "-m", "embedded", *arguments]


def _sentence(said: str) -> str:
    """What the platform said last, besides how far it is; a traceback's last line, should there be one."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(_STAGE)]
    if lines:
        return lines[-1]
    stage = _stage(said)
    ended = f"ended while it was {stage}" if stage else "ended at once"
    return f"The platform {ended} and said nothing of why; look into the logs in its data folder."


def _stage(said: str) -> str:
    """How far the platform said last that it is; empty: it did not say."""
    told = [line.removeprefix(_STAGE).strip() for line in said.splitlines() if line.startswith(_STAGE)]
    return told[-1] if told else ""


@dataclass(slots=True)
class Platform:
    """A platform that we started, as its process and its data folder."""

    process: subprocess.Popen[bytes]
    home: Path
    said: IO[bytes]

    def await_ready(self) -> dict[str, Any]:
        """What ``up.json`` tells, once it is this process's.

        Raises:
            AlreadyRuns: another process serves the folder.
            CannotStart: it ended, or was not ready in time.
        """
        deadline_s = time.monotonic() + _READY_WITHIN_S
        while True:
            facts = self._facts()
            if facts is not None:
                return facts
            try:
                self.process.wait(_LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                sentence = _sentence(self._said())
                raise (AlreadyRuns if self.process.returncode == ExitCode.CONFLICT else CannotStart)(sentence)
            if time.monotonic() > deadline_s:
                raise self._gave_up()

    def _gave_up(self) -> CannotStart:
        """Stop what is not ready in time, so that it is not in the way of the next try; what to say of it."""
        stage = _stage(self._said()) or "starting its first process"
        self.process.terminate()
        try:
            self.process.wait(_STOPPED_WITHIN_S)
            ended = "was stopped"
        except subprocess.TimeoutExpired:
            ended = f"is being stopped (process {self.process.pid})"
        return CannotStart(
            f"The platform was not ready after {_READY_WITHIN_S:.0f} s and {ended}; it was still {stage} in {self.home}. "
            f"Where {self.home / 'logs'} tells of no error, the machine is busy: try again, what is there is kept."
        )

    def _said(self) -> str:
        self.said.seek(0)
        return self.said.read().decode(errors="replace")

    def _facts(self) -> dict[str, Any] | None:
        try:
            facts = json_module.loads((self.home / "up.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) and facts.get("pid") == self.process.pid else None

    def stay(self) -> int:
        """Until the platform ends; its exit code, 0 when it was stopped."""
        with _forwarded(self.process):
            while True:
                try:
                    code = self.process.wait()
                    break
                except KeyboardInterrupt:
                    self._stop()
        if code not in (0, -signal.SIGTERM):
            raise CannotStart(f"The platform ended with code {code}; the logs in {self.home / 'logs'} say why.")
        return 0

    def _stop(self) -> None:
        running = _live_jobs(self.home)
        output.note("\nStopping the platform …")
        if running:
            output.note(
                f"{output.count(len(running), 'live job')} ({_some(running)}): what runs goes on by itself, "
                "what waits keeps its place; `trainmaster up` adopts them. "
                "`trainmaster down --cancel-jobs` would have ended them."
            )
        self.process.terminate()


def _live_jobs(home: Path) -> list[str]:
    """Names of jobs that have not ended; none when the platform does not tell quickly."""
    from trainmaster.contexts import local_server

    server = local_server(home)
    if server is None:
        return []
    try:
        with session.client_of(server, timeout_s=2.0, tries=1) as client:
            states = ("queued", "starting", "running", "cancelling")
            return [job.name for job in client.list_jobs(state=states, limit=100)]
    except TrainmasterError:
        return []


class _forwarded:  # noqa: N801 (used as a statement: `with _forwarded(process)`)
    """While inside, SIGTERM and SIGHUP to us stop the platform, too."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                self._before[number] = signal.signal(number, self._forward)
            except ValueError:
                return  # not in the main thread

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._process.terminate()
        for number, before in self._before.items():
            signal.signal(number, before)

    def _forward(self, _number: int, _frame: FrameType | None) -> None:
        self._process.terminate()


def _tell_ready(facts: dict[str, Any], home: Path, *, as_json: bool, detach: bool) -> None:
    _print_facts(facts, home, as_json=as_json)
    if as_json:
        return
    adopted = facts.get("adopted") or []
    if adopted:
        output.note(f"Adopted {output.count(len(adopted), 'running job')}: {_some(adopted)}.")
    _tell_other_context(home)
    stop = "trainmaster down" + (
        "" if "TRAINMASTER_HOME" in os.environ or home == Path("~/.trainmaster").expanduser() else f" --home {home}"
    )
    output.note(
        f"Ready. Try `trainmaster run -- python train.py`. Stop with {f'`{stop}`' if detach else 'Ctrl-C'}.", "dim"
    )


def _tell_running(home: Path, refusal: AlreadyRuns, *, port: int | None, as_json: bool) -> None:
    """The platform that runs on ``home``, with a login link that nobody has used. Raises ``refusal`` if it is not ready."""
    from trainmaster.contexts import local_server

    server = local_server(home)
    if server is None:
        raise refusal
    with session.client_of(server) as client:
        facts = {
            "url": server.url,
            "version": client.get_health().version,
            "login_url": link_of(server.url, client.create_login_code().code),
        }
    if port is not None and urlsplit(server.url).port != port:
        output.note(f"--port {port} has no effect: it is at {server.url} and stays there.", "yellow")
    if not as_json:
        output.note(f"A platform already runs on {home}; this is how to reach it. `trainmaster down` stops it.", "dim")
    _print_facts(facts, home, as_json=as_json)


def _print_facts(facts: dict[str, Any], home: Path, *, as_json: bool) -> None:
    token_file = home / "token"
    if as_json:
        output.print_json({**facts, "home": str(home), "token_file": str(token_file)})
    else:
        output.print_pairs(
            [
                ("Trainmaster", f"{facts.get('url')}"),
                ("Log in", facts.get("login_url")),
                ("Token", f"{token_file} (or `trainmaster token show`)"),
                ("Data", str(home)),
            ]
        )
    sys.stdout.flush()


def _tell_other_context(home: Path) -> None:
    """Commands elsewhere on this machine go to the current context, which may be another server."""
    from trainmaster.contexts import LOCAL, URL_VARIABLES, home_path, load_contexts

    if home != home_path().absolute():
        output.note(f"Other commands find it with `export TRAINMASTER_HOME={home}`.")
    current = load_contexts().current
    variable = next((name for name in URL_VARIABLES if os.environ.get(name)), None)
    if variable is not None:
        output.note(f"{variable} is set: commands go there, not to this platform.", "yellow")
    elif current not in (None, LOCAL):
        output.note(
            f"Commands go to the context {current}; `trainmaster contexts use local` turns them to this platform.",
            "yellow",
        )
