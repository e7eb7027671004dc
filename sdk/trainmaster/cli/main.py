"""The ``trainmaster`` command, with ``schema`` and ``version``.

Every other command group is a module of its own and loads its libraries when it runs.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from trainmaster.cli.jobs import checkpoints, files, images, listing, logs, metrics, show, submit, verbs
from trainmaster.cli.planner import queue, whatif
from trainmaster.cli.platform import (
    access,
    admin,
    audit,
    maintenance,
    nodes,
    notify,
    quota,
    retention,
    scheduling,
    service_accounts,
    updown,
    usage,
    webhook,
)
from trainmaster.cli.protocols import clients, vertex_table
from trainmaster.cli.serving import batch, endpoint, model
from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import (
    ExitCode,
    WrongUse,
    exit_code_of,
    is_debugging,
    is_help_request,
    tell_bug,
    tell_error,
    usage_sentence,
)
from trainmaster.cli.tuning import automl, study
from trainmaster.errors import TrainmasterError


class _ErrorBoundary(TyperGroup):
    """Converts errors into messages and exit codes, in this single place."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        asks_json = _asks_json(args)
        with _usage_errors_as(as_json=asks_json):
            ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta[_ASKS_JSON] = asks_json
        return ctx

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors_as(as_json=ctx.meta.get(_ASKS_JSON, False)):
            return self._invoke(ctx)

    def _invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except TrainmasterError as error:
            if is_debugging():
                raise
            tell_error(error, as_json=session.current().as_json)
            raise typer.Exit(exit_code_of(error)) from error
        except BrokenPipeError:
            _leave_broken_pipe()
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except (typer.Exit, typer.Abort, typer.BadParameter, typer.TyperException):
            raise
        except Exception as error:  # the outermost edge
            if is_debugging() or not _is_bug(error):
                raise
            tell_bug(error, as_json=session.current().as_json)
            raise typer.Exit(ExitCode.FAILED) from error


_ASKS_JSON: Final = "trainmaster.asks_json"


def _asks_json(arguments: list[str]) -> bool:
    """Whether ``--json`` is among the options; the parser may fail at an earlier option before it reads it."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


@contextmanager
def _usage_errors_as(*, as_json: bool) -> Iterator[None]:
    """Reports usage errors like other errors; Typer would draw a box around them, even in a pipe."""
    try:
        yield
    except typer.TyperException as error:
        if is_help_request(error):
            raise
        tell_error(WrongUse(usage_sentence(error)), as_json=as_json)
        raise typer.Exit(ExitCode.USAGE) from error


def _is_bug(error: Exception) -> bool:
    # Typer does not export the class of its usage errors, which it shows itself.
    return not type(error).__module__.startswith("typer.")


def _leave_broken_pipe() -> NoReturn:
    # The reader (`| head`) has exited. Flushing buffered output at exit would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(ExitCode.BROKEN_PIPE)


app = typer.Typer(
    name="trainmaster",
    cls=_ErrorBoundary,
    help="Train on your own machines: submit distributed jobs, watch them, fetch their output.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def begin(
    context: Annotated[
        str | None,
        typer.Option(
            "--context", "-C", help="The server to use; see `contexts list`.", autocompletion=options.complete_context
        ),
    ] = None,
) -> None:
    session.begin(context)


for _group in (
    updown,
    maintenance,
    submit,
    study,
    automl,
    endpoint,
    batch,
    model,
    whatif,
    listing,
    queue,
    show,
    logs,
    verbs,
    files,
    checkpoints,
    metrics,
    images,
    access,
    service_accounts,
    nodes,
    quota,
    retention,
    usage,
    audit,
    webhook,
    notify,
    scheduling,
    admin,
    clients,
    vertex_table,
):
    _group.register(app)


@app.command(rich_help_panel="Reference")
def schema(
    server: Annotated[bool, typer.Option("--server", help="The server's schema instead of this client's.")] = False,
    json: options.Json = False,  # noqa: ARG001 (it is JSON in any case)
) -> None:
    """The JSON Schema of the job spec, for editors and checks."""
    if server:
        with session.client() as client:
            output.print_json(client.get_spec_schema())
        return
    from trainmaster.spec import spec_json_schema

    output.print_json(spec_json_schema())


@app.command(rich_help_panel="Reference")
def version(
    server: Annotated[bool, typer.Option("--server", help="Include the server's version and health.")] = False,
    json: options.Json = False,
) -> None:
    """The versions of this client and, with --server, of the server."""
    from trainmaster.version import __version__, full_version, revision

    own = {"client": __version__, "revision": revision()}
    if not server:
        output.print_result(own, full_version(), as_json=json)
        return
    with session.client() as client:
        health = client.get_health()
        url = client.url
    if json:
        output.print_json({**own, "url": url, "server": health.model_dump(mode="json")})
        return
    build = f"{health.version} ({health.revision})" if health.revision else health.version
    output.print_pairs(
        [("Client", full_version()), ("Server", f"{build} at {url}, {health.status}"), *health.parts.items()]
    )


def run() -> None:
    """The entry point of the ``trainmaster`` script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a "?" instead of an error.
            stream.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        # SystemExit lets temporary files be removed.
        signal.signal(number, _leave_by_signal)
    app(prog_name="trainmaster")


def _leave_by_signal(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)  # as shells report it


if __name__ == "__main__":
    run()
