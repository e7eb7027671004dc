"""Where a job reads and writes: volumes and the paths in them, checked when it is submitted."""

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
class Output:
    volume: str
    path: str | None  # None: a folder of the job's own


def check_places(context: AppContext, caller: Caller, member: ProjectMembership, spec: JobSpec) -> Output:
    """Where the output goes, after all places of ``spec`` proved to be there and the caller's to use.

    Looks at the file system of volumes that the control plane sees; no session is open meanwhile.

    Raises:
        InvalidSpec: all mistakes at once, each with its field.
    """
    checker = _Checker(context, caller, member)
    if spec.input is not None:
        checker.check("input", *split_location(spec.input, field="input"), writes=False)
    for number, mount in enumerate(spec.mounts):
        checker.check(f"mounts.{number}", mount.volume, mount.path, writes=not mount.read_only)
    output = Output(context.settings.default_volume, None)
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
        if writes and volume.is_read_only:
            self._add(field, f"volume {volume_name!r} is read-only", "choose another volume to write to")
        is_shared = volume_name == self.context.settings.default_volume
        if is_shared and not self._check_owner(field, volume_name, path, writes=writes):
            return  # what lies there is not theirs to know
        if volume.root is not None:
            self._look(field, tree_of(volume), volume_name, path, is_shared=is_shared, must_exist=must_exist)

    def _look(self, field: str, tree: Tree, volume: str, path: str, *, is_shared: bool, must_exist: bool) -> None:
        """Whether the path is there, inside the volume and, where projects share that, inside the project's folder."""
        try:
            entry = find_place(tree, path, is_shared=is_shared)
            if must_exist:
                _prove_readable(tree, path, is_dir=entry.is_dir)
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
        """On the volume of the jobs' own folders the first folder names the project: others' stay theirs.

        Registered models lie there, too: those of one's projects may be read, and nobody writes to any.
        """
        own = {member.project for member in self.caller.projects.values()} | {self.member.project}
        owner = path.partition("/")[0]
        if owner == MODELS and writes:
            self._add(field, f"{volume}/{path} holds registered models, which never change", "mount it read-only")
            return False
        if not path and writes and self.caller.is_admin:  # nobody else gets the whole of it at all
            hint = f"name a folder in it, such as {volume}/{self.member.project}"
            self._add(field, f"the whole of {volume} has registered models in it, which never change", hint)
            return False
        if self.caller.is_admin:
            return True
        is_own = owner in own or is_place_of(path, own)
        if not is_own:
            hint = f"begin the path with a project of yours, such as {volume}/{self.member.project}/…"
            self._add(field, f"{volume}/{owner} belongs to no project of yours", hint)
        return is_own

    def _add(self, field: str, message: str, hint: str) -> None:
        self.mistakes.append({"path": field, "message": message, "hint": hint})


def _prove_readable(tree: Tree, path: str, *, is_dir: bool) -> None:
    """Raises ``Forbidden``: the platform's user, as which plain processes run, may not read it."""
    if is_dir:
        with tree.open_folder(path):
            return
    else:
        os.close(tree.open_file(path))
