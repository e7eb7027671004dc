"""Builds job specs from a file, a mapping, or a folder with a command."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from trainmaster.client.calls import jobs as calls
from trainmaster.client.flows.transfer import Progress, no_progress, upload_archive
from trainmaster.client.steps import Flow, RunBlocking
from trainmaster.errors import FieldMistake, InvalidSpec, LocalFileProblem
from trainmaster.packing import PackedFolder, pack_folder
from trainmaster.spec import JobSpec, SpecError, SpecMistake, read_spec_text
from trainmaster.spec.fields import requirement_lines
from trainmaster.wire.jobs import JobDetail

SpecSource: TypeAlias = JobSpec | Mapping[str, Any] | str | Path


def read_spec(source: SpecSource) -> Mapping[str, Any]:
    """The spec as written: a mapping, or from a YAML or JSON file (``str`` is a path, not YAML).

    Raises:
        LocalFileProblem: the file cannot be read.
        InvalidSpec: not YAML, or not a mapping.
    """
    if isinstance(source, JobSpec):
        return source.model_dump(mode="json", exclude_unset=True)
    if isinstance(source, Mapping):
        return source
    return spec_of_text(read_spec_file(source, "spec"), str(source))


def read_spec_file(file: str | Path, kind: str) -> str:
    """The file's text; ``kind``: of file, for the message of the error."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise LocalFileProblem(f"The {kind} {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"The {kind} {file} is not UTF-8 text.") from error


def spec_of_text(text: str, origin: str) -> Mapping[str, Any]:
    """The mapping in YAML or JSON text, not validated."""
    try:
        return read_spec_text(text)
    except SpecError as error:
        raise InvalidSpec(f"{origin} is not a job spec.", mistakes=field_mistakes(error.mistakes)) from error


def field_mistakes(mistakes: Iterable[SpecMistake]) -> list[FieldMistake]:
    return [FieldMistake(mistake.path, mistake.message, mistake.hint) for mistake in mistakes]


def environment_of(
    *,
    python: str | None = None,
    venv: Path | str | None = None,
    conda: str | None = None,
    requirements: Path | str | None = None,
) -> dict[str, Any]:
    """The spec's ``environment``: names and relative paths are looked up here, the requirements file is read.

    Raises:
        LocalFileProblem: no such program on the path, or the file cannot be read.
    """
    environment: dict[str, Any] = {}
    if python is not None:
        found = shutil.which(python) if "/" not in python else str(Path(python).expanduser().absolute())
        if found is None:
            raise LocalFileProblem(f"There is no program {python} on the PATH here; write its absolute path.")
        environment["python"] = os.path.normpath(found)
    if venv is not None:
        environment["venv"] = os.path.normpath(Path(venv).expanduser().absolute())
    if conda is not None:
        environment["conda"] = conda
    if requirements is not None:
        environment["requirements"] = read_requirements(Path(requirements))
        if not environment["requirements"]:
            raise LocalFileProblem(f"The requirements file {requirements} has no requirements.")
    return environment


def read_requirements(file: Path, above: tuple[Path, ...] = ()) -> list[str]:
    """The lines of a requirements file, with those of the files that it includes by ``-r``.

    Raises:
        LocalFileProblem: a file cannot be read, or includes itself.
    """
    if file.resolve() in above:
        raise LocalFileProblem(f"The requirements file {file} includes itself by -r.")
    lines: list[str] = []
    for line in requirement_lines(read_spec_file(file, "requirements file")):
        included = re.fullmatch(r"(?:-r|--requirement)[\s=]*(\S.*)", line)
        if included is None:
            lines.append(line)
        else:
            lines += read_requirements(file.parent / included[1].strip("\"'"), (*above, file.resolve()))
    return lines


class RunOptions(TypedDict, total=False):
    """Keyword arguments of ``run``: fields and shorthands of the job spec.

    ``gpus`` and ``processes_per_replica`` do not apply to parameter servers and evaluators; ``more`` holds any further
    fields of the spec.
    """

    name: str
    project: str
    workers: int | Mapping[str, int]
    ps: int
    chief: int
    evaluator: int
    gpus: float
    gpu_type: str
    cpu: str | float
    memory: str | int
    processes_per_replica: int
    image: str
    env: Mapping[str, str]
    environment: Mapping[str, Any]
    secrets: Sequence[str]
    labels: Mapping[str, str]
    input: str
    output: str
    priority: int
    max_run_time: str | float
    max_restarts: int
    contract: str
    launcher: str
    more: Mapping[str, Any]


def spec_of_run(
    command: str | Sequence[str], options: RunOptions, *, folder: Path | str | None = None
) -> dict[str, Any]:
    """The spec of a ``run``: a text is run by a shell, a list is executed directly. Without roles, one worker runs it.

    Args:
        folder: default for the job's name.
    """
    fields: dict[str, Any] = {key: value for key, value in options.items() if value is not None and key != "more"}
    spec = {
        "name": name_of_folder(Path(folder) if folder is not None else Path()),
        "command": command if isinstance(command, str) else list(command),
        **{key: list(value) if key == "secrets" else value for key, value in fields.items()},
    }
    return spec | dict(options.get("more", {}))


def name_of_folder(folder: Path) -> str:
    """A valid job name from the folder's name: lower-case letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:63].strip("-")
    return name or "job"


def submit_with_code(
    spec: SpecSource,
    code: Path | str | PackedFolder | None = None,
    *,
    project: str = "default",
    idempotency_key: str | None = None,
    progress: Progress | None = None,
) -> Flow[JobDetail]:
    """Submit a job; ``project`` is the default for specs without one.

    A ``code`` folder is packed and uploaded first, and its digest put into the spec. Before packing, the server checks
    the spec, so that mistakes show at once (not for a folder that is already packed).
    """
    raw: Mapping[str, Any] = yield RunBlocking(lambda: read_spec(spec))
    if project != "default":
        raw = {"project": project, **raw}
    if code is None:
        return (yield from calls.submit_job(raw, idempotency_key=idempotency_key))
    if isinstance(code, PackedFolder):
        digest = yield from _upload(code, raw.get("project", "default"), progress)
    else:
        yield from calls.check_spec({key: value for key, value in raw.items() if key != "code"})
        digest = yield from pack_and_upload(Path(code), project=raw.get("project", "default"), progress=progress)
    return (yield from calls.submit_job({**raw, "code": digest}, idempotency_key=idempotency_key))


def pack_and_upload(folder: Path, *, project: str | None = None, progress: Progress | None = None) -> Flow[str]:
    """Pack and upload a folder; returns the archive's digest. ``project``: see ``start_archive``."""
    packed: PackedFolder = yield RunBlocking(lambda: pack_folder(folder))
    try:
        return (yield from _upload(packed, project, progress))
    finally:
        packed.remove()


def _upload(packed: PackedFolder, project: Any, progress: Progress | None) -> Flow[str]:
    named = project if isinstance(project, str) else None  # else the server refuses the spec
    yield from upload_archive(packed.path, digest=packed.digest, project=named, progress=progress or no_progress)
    return packed.digest
