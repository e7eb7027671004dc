"""Checks at submission of the volumes and paths that a job reads and writes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches

from trainmaster.spec import JobSpec

from api.app.unit_of_work import AppContext
from api.auth import Caller, ProjectMembership
from core.domain.errors import InvalidSpec, NotFound, TrainmasterError
from core.storage.registry import FOLDER as MODELS
from core.storage.registry import is_place_of
from core.storage.tree import LeavesVolume, Tree
from core.storage.volumes import find_place, split_location, tree_of


@dataclass(frozen=True, slots=True)
class JobOutput:
    volume: str
    path: str | None  # None: a new folder for the job


def check_locations(context: AppContext, caller: Caller, member: ProjectMembership, spec: JobSpec) -> JobOutput:
    """The job's output, after a check that all locations of ``spec`` exist and that the caller may use them.

    Reads the file systems of volumes that the control plane can access; no database session is open meanwhile.

    Raises:
        InvalidSpec: all mistakes at once, each with its field.
    """
    checker = _Checker(context, caller, member)
    if spec.input is not None:
        checker.check("input", *split_location(spec.input, field="input"), writes=False)
    for number, mount in enumerate(spec.mounts):
        checker.check(f"mounts.{number}", mount.volume, mount.path, writes=not mount.read_only)
    output = JobOutput(context.settings.default_volume, None)
    if spec.output is not None:
        volume, path = split_location(spec.output, field="output")
        output = JobOutput(volume, path)
        checker.check("output", volume, path, writes=True, must_exist=False)
    else:
        checker.check("output", output.volume, member.project, writes=True, must_exist=False)
    if checker.mistakes:
        first = checker.mistakes[0]
        raise InvalidSpec(f"{first['path']}: {first['message']}", field=first["path"], errors=checker.mistakes)
    return output


class _Checker:
    def __init__(self, context: AppContext, caller: Caller, member: ProjectMembership) -> None:
        self.context = context
        self.caller = caller
        self.member = member
        self.mistakes: list[dict[str, str | None]] = []

    def check(self, field: str, volume_name: str, path: str, *, writes: bool, must_exist: bool = True) -> None:
        volume = self.context.volumes.find(volume_name, self.context.clock())
        if volume is None:
            close = get_close_matches(volume_name, self.context.volumes.names(), 1)
            hint = f"did you mean {close[0]}?" if close else "`trainmaster volumes` lists them"
            self._add(field, f"there is no volume {volume_name!r}", hint)
            return
        if self.context.settings.executor == "process" and volume.kind != "local":
            message = f"volume {volume_name!r} is of kind {volume.kind}, which plain processes cannot mount"
            hint = "mount its storage on the platform's machine, and add that folder as a volume of kind local"
            self._add(field, message, hint)
            return
        if writes and volume.is_read_only:
            self._add(field, f"volume {volume_name!r} is read-only", "choose another volume to write to")
        is_shared = volume_name == self.context.settings.default_volume
        if is_shared and not self._check_owner(field, volume_name, path, writes=writes):
            return  # the caller may not learn what exists there
        if volume.root is not None:
            self._check_path(field, tree_of(volume), volume_name, path, is_shared=is_shared, must_exist=must_exist)

    def _check_path(self, field: str, tree: Tree, volume: str, path: str, *, is_shared: bool, must_exist: bool) -> None:
        """Check that the path exists inside the volume and, on the shared volume, inside the project's folder."""
        try:
            entry = find_place(tree, path, is_shared=is_shared)
            if must_exist:
                _check_readable(tree, path, is_dir=entry.is_dir)
        except LeavesVolume as error:
            self._add(field, f"{volume}/{path} cannot be used: {error.sentence}", "name the folder itself, not a link")
        except NotFound as error:
            if must_exist:
                self._add(field, f"{volume}/{path} cannot be read: {error.sentence}", "check the path")
        except TrainmasterError as error:
            if must_exist:
                self._add(
                    field, f"{volume}/{path} cannot be read: {error.sentence}", "check the path and its permissions"
                )

    def _check_owner(self, field: str, volume: str, path: str, *, writes: bool) -> bool:
        """On the default volume, the first folder is the project: only its members may use it.

        Registered models are also on this volume: members may read those of their projects; no job may write to them.
        """
        own = {member.project for member in self.caller.projects.values()} | {self.member.project}
        owner = path.partition("/")[0]
        if owner == MODELS and writes:
            self._add(field, f"{volume}/{path} has registered models, which are immutable", "mount it read-only")
            return False
        if not path and writes and self.caller.is_admin:  # other users may not mount the whole volume at all
            hint = f"name a folder in it, such as {volume}/{self.member.project}"
            self._add(field, f"{volume} as a whole includes registered models, which are immutable", hint)
            return False
        if self.caller.is_admin:
            return True
        is_own = owner in own or is_place_of(path, own)
        if not is_own:
            hint = f"begin the path with a project of yours, such as {volume}/{self.member.project}/…"
            self._add(field, f"{volume}/{owner} does not belong to a project of yours", hint)
        return is_own

    def _add(self, field: str, message: str, hint: str) -> None:
        self.mistakes.append({"path": field, "message": message, "hint": hint})


def _check_readable(tree: Tree, path: str, *, is_dir: bool) -> None:
    """Raises ``Forbidden``: the platform's system user, which runs plain processes, may not read it."""
    if is_dir:
        with tree.open_folder(path):
            return
    else:
        os.close(tree.open_file(path))
