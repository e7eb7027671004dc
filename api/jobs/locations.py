"""Checks at submission of the volumes and paths that a job reads and writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from trainmaster.spec import JobSpec

from api.app.unit_of_work import AppContext
from api.auth import Caller, ProjectMembership
from api.volumes.access import access_refusal, usable_volumes
from core.domain.errors import InvalidSpec, NotFound, TrainmasterError
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
    # The cached roles may be seconds old; ``member`` was just checked.
    known = replace(caller, projects={**caller.projects, member.project_id: member})
    checker = _Checker(context, known)
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
    def __init__(self, context: AppContext, caller: Caller) -> None:
        self.context = context
        self.caller = caller
        self.mistakes: list[dict[str, str | None]] = []

    def check(self, field: str, volume_name: str, path: str, *, writes: bool, must_exist: bool = True) -> None:
        volume = self.context.volumes.find(volume_name, self.context.clock())
        if volume is None:
            close = get_close_matches(volume_name, usable_volumes(self.context, self.caller), 1)
            hint = f"did you mean {close[0]}?" if close else "`trainmaster volumes` lists them"
            self._add(field, f"there is no volume {volume_name!r}", hint)
            return
        if self.context.settings.executor == "process" and volume.kind != "local":
            message = f"volume {volume_name!r} is of kind {volume.kind}, which plain processes cannot mount"
            hint = "mount its storage on the platform's machine, and add that folder as a volume of kind local"
            self._add(field, message, hint)
            return
        refusal = access_refusal(self.context.settings, self.caller, volume, path, writes=writes)
        if refusal is not None:
            self._add(field, refusal.message, refusal.hint)
            return  # the caller may not learn what exists there
        if volume.root is not None:
            boundaries = self.context.boundaries_of(volume, path)
            self._check_path(field, tree_of(volume), volume_name, path, boundaries, must_exist=must_exist)

    def _check_path(
        self, field: str, tree: Tree, volume: str, path: str, boundaries: Sequence[str], *, must_exist: bool
    ) -> None:
        """Check that the path exists inside the volume and its boundaries."""
        try:
            entry = find_place(tree, path, boundaries)
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

    def _add(self, field: str, message: str, hint: str) -> None:
        self.mistakes.append({"path": field, "message": message, "hint": hint})


def _check_readable(tree: Tree, path: str, *, is_dir: bool) -> None:
    """Raises ``Forbidden``: the platform's system user, which runs plain processes, may not read it."""
    if is_dir:
        with tree.open_folder(path):
            return
    else:
        os.close(tree.open_file(path))
