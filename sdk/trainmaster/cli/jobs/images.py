"""``image``: builds a container image of a folder with the Docker command line.

The command line knows the user's engine, builders and registry logins; a library would not.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from trainmaster.cli.terminal import options, output
from trainmaster.errors import InvalidRequest, LocalFileProblem, NotConfigured, TrainmasterError

app = typer.Typer(help="Container images of your code, built by the local container engine.", no_args_is_help=True)
_PROGRAMS: Final = ("docker", "podman")
_DEFAULT_BASE: Final = "python:3.11-slim"  # equals trainmaster.images.DEFAULT_BASE, which is imported lazily
_ENGINE_S: Final = 20.0
_STDERR: Final = 2  # file descriptor for the engine's output

Tag = Annotated[str, typer.Option("--tag", "-t", help="Name of the image, such as registry.example.com/team/mnist:1.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the engine's progress.")]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="image", rich_help_panel="Jobs")


@app.command()
def build(
    tag: Tag,
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The code folder, copied to /data.")] = Path(),
    base: Annotated[str, typer.Option("--base", help="Base image.")] = _DEFAULT_BASE,
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements", "-r", help="Requirements file for pip; default: the folder's requirements.txt, if any."
        ),
    ] = None,
    no_requirements: Annotated[bool, typer.Option("--no-requirements", help="Install nothing with pip.")] = False,
    apt: Annotated[
        list[str] | None, typer.Option("--apt", metavar="PACKAGE", help="Debian package. Repeatable.")
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", help='Default command of jobs, such as "python train.py".')
    ] = None,
    build_arg: Annotated[
        list[str] | None,
        typer.Option("--build-arg", metavar="NAME=VALUE", help="Build argument, such as PIP_INDEX_URL=…."),
    ] = None,
    user: Annotated[str, typer.Option("--user", help="User that owns the code and runs the command.")] = "1000:1000",
    network: Annotated[str | None, typer.Option("--network", help="Network of the build steps, such as host.")] = None,
    pull: Annotated[bool, typer.Option("--pull", help="Pull a newer base image.")] = False,
    is_pushed: Annotated[bool, typer.Option("--push", help="Push the image after the build.")] = False,
    quiet: Quiet = False,
    json: options.Json = False,
) -> None:
    """Build an image of a folder: base image, apt packages, requirements, the code at /data, a command.

    Files ignored by .trainmasterignore or .gitignore are left out, as in a job's code.
    """
    from trainmaster.images import ImagePlan, check_reference, write_context

    check_reference(tag, field="tag")
    arguments = options.pairs(build_arg or [], option="--build-arg")
    plan = ImagePlan(
        base=base,
        requirements=None if no_requirements else _requirements(folder, requirements),
        packages=tuple(apt or ()),
        command=command,
        arguments=tuple(arguments),
        user=user,
    )
    engine = _engine()
    words = [engine, "build", "--tag", tag]
    words += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    words += [f"--network={network}"] if network else []
    words += ["--pull"] if pull else []
    with tempfile.TemporaryFile() as context:
        count = write_context(plan, folder, context)
        context.seek(0)
        output.note(f"Building {tag} from {output.count(count, 'file')} of {folder.resolve()} on {base} …")
        done = _run([*words, "-"], quiet=quiet or json, stdin=context)
    if done.returncode != 0:
        raise TrainmasterError(f"The build failed; {_why(done)}")
    if is_pushed:
        _push(engine, tag, quiet=quiet or json)
    _show(engine, tag, as_json=json, done="Pushed" if is_pushed else "Built")


@app.command()
def push(
    tag: Annotated[str, typer.Argument(metavar="IMAGE", help="The name it was built with.")],
    quiet: Quiet = False,
    json: options.Json = False,
) -> None:
    """Push an image to its registry, from which nodes can pull it."""
    from trainmaster.images import check_reference

    check_reference(tag, field="tag")
    engine = _engine()
    _push(engine, tag, quiet=quiet or json)
    _show(engine, tag, as_json=json, done="Pushed")


def _push(engine: str, tag: str, *, quiet: bool) -> None:
    done = _run([engine, "push", tag], quiet=quiet)
    if done.returncode != 0:
        host = tag.partition("/")[0]
        login = f"{engine} login {host}" if "." in host or ":" in host else f"{engine} login"
        raise TrainmasterError(f"{tag} was not pushed; {_why(done)} If the registry requires a login: `{login}`.")


def _show(engine: str, tag: str, *, as_json: bool, done: str) -> None:
    process = subprocess.run(
        [engine, "image", "inspect", "--format", "{{.Id}} {{.Size}}", tag], capture_output=True, text=True, check=False
    )
    identity, _, size = process.stdout.strip().partition(" ")
    size_bytes = int(size) if size.isdigit() else None
    output.print_result(
        {"image": tag, "id": identity or None, "size_bytes": size_bytes},
        f"{done} {tag} ({output.size(size_bytes)}). Use it with `image: {tag}`.",
        as_json=as_json,
    )


def _engine() -> str:
    """The command of an engine that answers.

    Raises:
        NotConfigured: no engine is installed, or it does not answer.
    """
    program = next((name for name in _PROGRAMS if shutil.which(name)), None)
    if program is None:
        raise NotConfigured(
            "There is no container engine on this machine: neither `docker` nor `podman` is installed. "
            "Install one, or submit the folder as the job's code, which needs no image."
        )
    try:
        answer = subprocess.run([program, "version"], capture_output=True, text=True, check=False, timeout=_ENGINE_S)
    except subprocess.TimeoutExpired as error:
        raise NotConfigured(
            f"The engine of `{program}` does not answer within {_ENGINE_S:g} s; is it running?"
        ) from error
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotConfigured(f"The engine of `{program}` does not answer ({reason}); start it, or set DOCKER_HOST.")
    return program


def _requirements(folder: Path, path: Path | None) -> bytes | None:
    from trainmaster.images import REQUIREMENTS

    chosen = path or folder / REQUIREMENTS
    try:
        return chosen.read_bytes()
    except FileNotFoundError as error:
        if path is None:
            return None
        raise InvalidRequest(f"--requirements: there is no file {path}.") from error
    except OSError as error:
        raise LocalFileProblem(f"{chosen} cannot be read: {error.strerror}.") from error


def _run(
    words: list[str], *, quiet: bool, stdin: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[str]:
    """Run the engine; its output goes to stderr, or if quiet into the result, for the error message."""
    return subprocess.run(
        words,
        stdin=stdin,
        stdout=subprocess.PIPE if quiet else _STDERR,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )


def _why(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout or "").splitlines() if line.strip()]
    return f"the engine says: {lines[-1].strip()[-500:]}." if lines else "the engine's lines above say why."
