"""Container images of a code folder: base image, packages, requirements, code and command. Only reads the folder."""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from trainmaster.errors import InvalidRequest, UnfitFolder
from trainmaster.packing import FolderEntry, list_folder

WORK: Final = "/data"  # the jobs' working directory, which holds the code in UAI's images, too
DEFAULT_BASE: Final = "python:3.11-slim"
REQUIREMENTS: Final = "requirements.txt"
USER: Final = "1000:1000"
_CODE: Final = "code"
_NO_BLANKS: Final = re.compile(r"[^\s]+")
# https://github.com/distribution/reference: a host with a port, lower-case parts, a tag, a digest.
_REFERENCE: Final = re.compile(
    r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?")
_ARGUMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """Contents of an image.

    Attributes:
        requirements: content of a requirements file for pip.
        packages: Debian or Ubuntu packages, installed with apt-get.
        command: default command of jobs, as a list or as a shell-quoted line (executed without a shell).
        arguments: names of build arguments available to the build steps, such as ``PIP_INDEX_URL``.
    """

    base: str = DEFAULT_BASE
    requirements: bytes | None = None
    packages: tuple[str, ...] = ()
    command: Sequence[str] | str | None = None
    arguments: tuple[str, ...] = ()
    user: str = USER

    def check(self) -> None:
        """Raises ``InvalidRequest`` for values that would inject instructions into the Dockerfile."""
        check_reference(self.base, field="base")
        for package in self.packages:
            if not _PACKAGE.fullmatch(package):
                raise InvalidRequest(f"--apt {package!r} is not a package name; write one like git or libgl1=1.6.0-1.")
        for name in self.arguments:
            if not _ARGUMENT.fullmatch(name):
                raise InvalidRequest(f"--build-arg {name!r} is not a name; write NAME=VALUE.")
        if not _NO_BLANKS.fullmatch(self.user):
            raise InvalidRequest("--user must be a name or a number, or two of them like 1000:1000.")


def check_reference(name: str, *, field: str) -> None:
    """Raises ``InvalidRequest`` if ``name`` is not an image reference."""
    if not _REFERENCE.fullmatch(name):
        raise InvalidRequest(
            f"--{field} {name!r} is not an image name; write one like registry.example.com/team/mnist:1, in lower case."
        )


def render_dockerfile(plan: ImagePlan) -> str:
    """Layers that seldom change come first, so that after a change of the code most layers come from the cache."""
    plan.check()
    lines = [f"FROM {plan.base}", *(f"ARG {name}" for name in plan.arguments), "USER root"]
    if plan.packages:
        names = " ".join(plan.packages)
        lines.append(
            f"RUN apt-get update && apt-get install -y --no-install-recommends {names} && rm -rf /var/lib/apt/lists/*"
        )
    if plan.requirements is not None:
        options = "--no-cache-dir --disable-pip-version-check --root-user-action=ignore"
        lines += [
            f"COPY {REQUIREMENTS} /tmp/{REQUIREMENTS}",
            f"RUN python -m pip install {options} -r /tmp/{REQUIREMENTS}",
        ]
    lines += [f"COPY --chown={plan.user} {_CODE}/ {WORK}/", f"WORKDIR {WORK}", f"USER {plan.user}"]
    if plan.command:
        lines += ["ENTRYPOINT []", f"CMD {json.dumps(_words(plan.command))}"]
    return "\n".join(lines) + "\n"


def write_context(plan: ImagePlan, folder: Path, target: IO[bytes]) -> int:
    """Write the build context as a tar archive; returns the number of code files.

    Files ignored by ``.trainmasterignore`` or ``.gitignore`` are left out, as in a job's code.

    Raises:
        UnfitFolder: ``folder`` has no files to pack, or a link to a file outside of it.
    """
    dockerfile = render_dockerfile(plan).encode()
    entries, _ = list_folder(folder)
    count = sum(not entry.is_folder for entry in entries)
    if not count:
        raise UnfitFolder(f"There is nothing to pack in {folder}: it is empty, or all its files are ignored.")
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "Dockerfile", dockerfile)
        if plan.requirements is not None:
            _add(archive, REQUIREMENTS, plan.requirements)
        for entry in entries:
            _add_entry(archive, entry)
    return count


def _words(command: Sequence[str] | str) -> list[str]:
    try:
        return shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise InvalidRequest(f"--command cannot be read ({error}); close its quotes.") from error


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    archive.addfile(member, io.BytesIO(content))


def _add_entry(archive: tarfile.TarFile, entry: FolderEntry) -> None:
    member = tarfile.TarInfo(f"{_CODE}/{entry.name}")
    # No modification times, so that the builder's cache recognizes unchanged code.
    if entry.is_folder:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(member)
    elif entry.link is not None:
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.link, 0o777
        archive.addfile(member)
    else:
        member.size, member.mode = entry.size, 0o755 if entry.mode & 0o100 else 0o644
        with entry.path.open("rb") as stream:
            archive.addfile(member, stream)
