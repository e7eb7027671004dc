"""``up`` and ``down``: the whole platform on this machine."""

from __future__ import annotations

import json as json_module
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
# Longer than the platform's own timeouts, whose messages say more.
READY_WITHIN_S: Final = 180.0
_STOPPED_WITHIN_S: Final = 25.0
_STAGE: Final = "Starting: "  # prefix of the platform's status lines
_POLL_S: Final = 0.05
_NAMES_SHOWN: Final = 5
_MOST_OUTPUT_BYTES: Final = 2**20
_NOT_INSTALLED: Final = (
    "The platform itself is not installed here, only its client; install the package `trainmaster-server` "
    "(in a clone of the repository: `pip install .`), or `trainmaster login URL` to a server elsewhere."
)
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Data folder; default: TRAINMASTER_HOME or ~/.trainmaster."),
]


class ExecutorKind(StrEnum):
    """The executors of a platform."""

    PROCESS = "process"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"


class PlatformNotStarted(TrainmasterError):
    """The platform did not start or stop; the message is the platform's."""

    code = "cannot_start"


class PlatformAlreadyRunning(PlatformNotStarted):
    """A platform already runs on the data folder."""

    code = "already_runs"


def register(root: typer.Typer) -> None:
    root.command(rich_help_panel=_PANEL)(up)
    root.command(rich_help_panel=_PANEL)(down)


def up(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help=f"Port; default: {_PORT}; 0 takes a free one.")
    ] = None,
    executor: Annotated[
        ExecutorKind | None,
        typer.Option(
            "--executor",
            envvar="TRAINMASTER_EXECUTOR",
            help="Executor of jobs: plain processes or a container engine.",
        ),
    ] = None,
    home: Home = None,
    detach: Annotated[bool, typer.Option("--detach/--foreground", "-d", help="Leave it running and return.")] = False,
    json: options.Json = False,
) -> None:
    """Start the platform on this machine: API, scheduler and one node. Ctrl-C stops it; running jobs continue.

    If it is already running, prints its URL and a new login link.
    """
    folder = data_folder(home)
    arguments = ["up", "--home", str(folder), "--host", host, "--port", str(_PORT if port is None else port)]
    if executor is not None:
        arguments += ["--executor", executor.value]
    with tempfile.TemporaryFile() as log, output.busy("Starting the platform") as tell_stage:
        # In a new session, so that Ctrl-C reaches only this process, which prints a message before it stops the
        # platform.
        process = subprocess.Popen(
            _embedded(arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
        platform = PlatformProcess(process, folder, log)
        if not json:
            platform.tell_stage = tell_stage
        running: PlatformAlreadyRunning | None = None
        facts: dict[str, Any] = {}
        with _forwarded(process):
            try:
                facts = platform.await_ready()
            except PlatformAlreadyRunning as error:
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
        bool,
        typer.Option("--cancel-jobs", help="Cancel live jobs first; otherwise they continue and `up` adopts them."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Stop the platform on this machine."""
    folder = data_folder(home)
    arguments = ["down", "--home", str(folder), "--jobs", "cancel" if cancel_jobs else "keep"]
    with output.busy("Stopping the platform"):
        result = subprocess.run(_embedded(arguments), capture_output=True, text=True, check=False, cwd="/")
    if result.returncode == ExitCode.UNREACHABLE:
        raise NotConfigured(last_sentence(result.stderr))
    if result.returncode != 0:
        raise PlatformNotStarted(last_sentence(result.stderr or result.stdout))
    summary = json_module.loads(result.stdout or "{}")
    if json:
        output.print_json({"stopped": str(folder), **summary})
        return
    cancelled, live = summary.get("cancelled", []), summary.get("live", [])
    if cancelled:
        output.say(
            f"Stopped, after {output.count(len(cancelled), 'job')} {_were(cancelled)} cancelled: {_brief(cancelled)}."
        )
    elif live:
        output.say(
            f"Stopped. {output.count(len(live), 'live job')} ({_brief(live)}): running jobs continue, waiting jobs "
            "keep their queue positions; `trainmaster up` adopts them."
        )
    else:
        output.say("Stopped. There were no live jobs.")


def _were(names: list[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _brief(names: list[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")


def data_folder(home: Path | None) -> Path:
    from trainmaster.contexts import home_path

    return (home.expanduser() if home is not None else home_path()).absolute()


def _embedded(arguments: list[str]) -> list[str]:
    return server_command("embedded", arguments)


def server_command(module: str, arguments: list[str]) -> list[str]:
    """The command line of a module of the platform. Raises ``PlatformNotStarted``: it is not installed here."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise PlatformNotStarted(_NOT_INSTALLED)
    # -P: folders named `embedded` or `api` in the working directory must not shadow the platform's packages.
    return [sys.executable, "-P", "-m", module, *arguments]


def last_sentence(log: str) -> str:
    """The last line of the platform's output, such as of a traceback, without status lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith(_STAGE)]
    if lines:
        return lines[-1]
    stage = _stage(log)
    ended = f"ended while it was {stage}" if stage else "ended at once"
    return f"The platform {ended} without a message; see the logs in its data folder."


def _stage(log: str) -> str:
    """The platform's last status; empty without one."""
    stages = [line.removeprefix(_STAGE).strip() for line in log.splitlines() if line.startswith(_STAGE)]
    return stages[-1] if stages else ""


@dataclass(slots=True)
class PlatformProcess:
    """A platform started by this command: its process, data folder and output."""

    process: subprocess.Popen[bytes]
    home: Path
    log: IO[bytes]
    tell_stage: Callable[[str], None] | None = None  # called with each stage of the start
    stage: str = ""

    def await_ready(self) -> dict[str, Any]:
        """The content of ``up.json``, once this process has written it.

        Raises:
            PlatformAlreadyRunning: another process serves the folder.
            PlatformNotStarted: it ended, or was not ready in time.
        """
        deadline_s = time.monotonic() + READY_WITHIN_S
        while True:
            facts = self._facts()
            if facts is not None:
                return facts
            self._follow_stage()
            try:
                self.process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                sentence = last_sentence(self._output())
                raise (PlatformAlreadyRunning if self.process.returncode == ExitCode.CONFLICT else PlatformNotStarted)(
                    sentence
                )
            if time.monotonic() > deadline_s:
                raise self._timed_out()

    def _timed_out(self) -> PlatformNotStarted:
        """Stop a platform that was not ready in time, so that it does not block the next start; returns the error."""
        stage = _stage(self._output()) or "starting its first process"
        self.process.terminate()
        try:
            self.process.wait(_STOPPED_WITHIN_S)
            ended = "was stopped"
        except subprocess.TimeoutExpired:
            ended = f"is being stopped (process {self.process.pid})"
        return PlatformNotStarted(
            f"The platform was not ready after {READY_WITHIN_S:.0f} s and {ended}; it was still {stage} in "
            f"{self.home}. "
            f"If {self.home / 'logs'} shows no error, the machine is busy: try again, its data are intact."
        )

    def _follow_stage(self) -> None:
        stage = _stage(self._output()) if self.tell_stage else ""
        if self.tell_stage and stage != self.stage:
            self.stage = stage
            self.tell_stage(stage)

    def _output(self) -> str:
        # pread leaves the position alone, at which the platform writes.
        return os.pread(self.log.fileno(), _MOST_OUTPUT_BYTES, 0).decode(errors="replace")

    def _facts(self) -> dict[str, Any] | None:
        try:
            facts = json_module.loads((self.home / "up.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) and facts.get("pid") == self.process.pid else None

    def stay(self) -> int:
        """Wait until the platform ends; returns its exit code, 0 after a stop."""
        with _forwarded(self.process):
            while True:
                try:
                    code = self.process.wait()
                    break
                except KeyboardInterrupt:
                    self._stop()
        if code not in (0, -signal.SIGTERM):
            raise PlatformNotStarted(f"The platform ended with code {code}; the logs in {self.home / 'logs'} say why.")
        return 0

    def _stop(self) -> None:
        running = _live_jobs(self.home)
        output.note("\nStopping the platform …")
        if running:
            output.note(
                f"{output.count(len(running), 'live job')} ({_brief(running)}): running jobs continue, waiting jobs "
                "keep their queue positions; `trainmaster up` adopts them. To cancel jobs, use `trainmaster down "
                "--cancel-jobs`."
            )
        self.process.terminate()


def _live_jobs(home: Path) -> list[str]:
    """Names of live jobs; none without a quick answer of the platform."""
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
    """Within the context, SIGTERM and SIGHUP to this process also stop the platform."""

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
    if facts.get("job_users"):
        output.note(facts["job_users"], "dim")
    for warning in facts.get("warnings") or []:
        output.note(warning, "yellow")
    adopted = facts.get("adopted") or []
    if adopted:
        output.note(f"Adopted {output.count(len(adopted), 'running job')}: {_brief(adopted)}.")
    _tell_other_context(home)
    stop = "trainmaster down" + (
        "" if "TRAINMASTER_HOME" in os.environ or home == Path("~/.trainmaster").expanduser() else f" --home {home}"
    )
    output.note(
        f"Ready. Try `trainmaster run -- python train.py`. Stop with {f'`{stop}`' if detach else 'Ctrl-C'}.", "dim"
    )


def _tell_running(home: Path, refusal: PlatformAlreadyRunning, *, port: int | None, as_json: bool) -> None:
    """Print the platform running on ``home``, with a new login link. Raises ``refusal`` if it is not ready."""
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
        output.note(f"--port {port} has no effect: the platform already runs at {server.url}.", "yellow")
    if not as_json:
        output.note(f"A platform already runs on {home}. `trainmaster down` stops it.", "dim")
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
    """Print a hint if commands use another server than this platform by default."""
    from trainmaster.contexts import LOCAL, URL_VARIABLES, home_path, load_contexts

    if home != home_path().absolute():
        output.note(f"Other commands find it with `export TRAINMASTER_HOME={home}`.")
    current = load_contexts().current
    variable = next((name for name in URL_VARIABLES if os.environ.get(name)), None)
    if variable is not None:
        output.note(f"{variable} is set: commands use that server, not this platform.", "yellow")
    elif current not in (None, LOCAL):
        output.note(
            f"Commands use the context {current}; `trainmaster contexts use local` selects this platform.",
            "yellow",
        )
