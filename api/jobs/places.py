"""Where a job reads and writes: volumes and the paths in them, checked when it is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from trainmaster.spec import JobSpec

from api.auth import Caller, Member
from api.work import Platform
from core.domain.errors import InvalidSpec, TrainmasterError
from core.storage.volumes import split_location, tree_of


@dataclass(frozen=True, slots=True)
class Output:
    volume: str
    path: str | None  # None: a folder of the job's own


def check_places(platform: Platform, caller: Caller, member: Member, spec: JobSpec) -> Output:
    """Where the output goes, after all places of ``spec`` proved to be there and the caller's to use.

    Looks at the file system of volumes that the control plane sees; no session is open meanwhile.

    Raises:
        InvalidSpec: all mistakes at once, each with its field.
    """
    checker = _Checker(platform, caller, member)
    if spec.input is not None:
        checker.check("input", *split_location(spec.input, field="input"), writes=False)
    for number, mount in enumerate(spec.mounts):
        checker.check(f"mounts.{number}", mount.volume, mount.path, writes=not mount.read_only)
    output = Output(platform.settings.default_volume, None)
    if spec.output is not None:
        volume, path = split_location(spec.output, field="output")
        output = Output(volume, path)
        checker.check("output", volume, path, writes=True, must_exist=False)
    else:
        checker.check("output", output.volume, member.project, writes=True, must_exist=False)
    if checker.mistakes:
        first = checker.mistakes[0]
        raise InvalidSpec(f"{first['path']}: {first['message']}", field=first["path"], errors=checker.mistakes)
    return output


class _Checker:
    def __init__(self, platform: Platform, caller: Caller, member: Member) -> None:
        self.platform = platform
        self.caller = caller
        self.member = member
        self.mistakes: list[dict[str, str | None]] = []

    def check(self, field: str, volume_name: str, path: str, *, writes: bool, must_exist: bool = True) -> None:
        volume = self.platform.volumes.find(volume_name, self.platform.clock())
        if volume is None:
            close = get_close_matches(volume_name, self.platform.volumes.names(), 1)
            hint = f"did you mean {close[0]}?" if close else "`trainmaster volumes` lists them"
            self._add(field, f"there is no volume {volume_name!r}", hint)
            return
        if writes and volume.is_read_only:
            self._add(field, f"volume {volume_name!r} is read-only", "choose another volume to write to")
        if volume_name == self.platform.settings.default_volume:
            self._check_owner(field, volume_name, path)
        if must_exist and volume.root is not None:
            try:
                tree_of(volume).below(path).stat()
            except TrainmasterError as error:
                self._add(field, f"{volume_name}/{path} cannot be read: {error.sentence}", "check the path")

    def _check_owner(self, field: str, volume: str, path: str) -> None:
        """On the volume of the jobs' own folders the first folder names the project: others' stay theirs."""
        if self.caller.is_admin:
            return
        owner = path.partition("/")[0]
        if owner not in {member.project for member in self.caller.projects.values()} | {self.member.project}:
            hint = f"begin the path with a project of yours, such as {volume}/{self.member.project}/…"
            self._add(field, f"{volume}/{owner} belongs to no project of yours", hint)

    def _add(self, field: str, message: str, hint: str) -> None:
        self.mistakes.append({"path": field, "message": message, "hint": hint})
