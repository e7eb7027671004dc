"""Creating a study together with its code, and waiting for its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.client.calls import automl
from trainmaster.client.calls import studies as calls
from trainmaster.client.compose import upload_code
from trainmaster.client.steps import Flow, Pause, RunBlocking
from trainmaster.errors import FieldMistake, InvalidSpec, LocalFileProblem, WaitTimedOut
from trainmaster.packing import PackedFolder, pack_folder
from trainmaster.spec import SpecError
from trainmaster.studies import StudySpec, read_study_text
from trainmaster.studies.parse import not_finite
from trainmaster.wire.automl import AutomlDetail
from trainmaster.wire.models import FINAL_VERSION_STATES
from trainmaster.wire.studies import TERMINAL_STUDY_STATES, StudyDetail

_FIRST_POLL_S: Final = 0.2
_MAX_POLL_S: Final = 2.0


def read_study(source: StudySpec | Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """The spec as its author wrote it: a mapping, or from a YAML or JSON file (``str`` is a path, not YAML).

    Raises:
        LocalFileProblem: the file cannot be read.
        InvalidSpec: it is no YAML, or its top is no mapping.
    """
    if isinstance(source, StudySpec):
        return source.model_dump(mode="json")
    if isinstance(source, Mapping):
        mistakes = not_finite(source)
        if mistakes:
            told = [FieldMistake(mistake.path, mistake.message, mistake.hint) for mistake in mistakes]
            raise InvalidSpec("The study spec has a mistake.", mistakes=told)
        return source
    try:
        text = Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise LocalFileProblem(f"The study {source} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"The study {source} is not UTF-8 text.") from error
    return study_of_text(text, str(source))


def study_of_text(text: str, origin: str) -> Mapping[str, Any]:
    """The mapping that YAML or JSON text holds; nothing in it is checked yet."""
    try:
        return read_study_text(text)
    except SpecError as error:
        told = [FieldMistake(mistake.path, mistake.message, mistake.hint) for mistake in error.mistakes]
        raise InvalidSpec(f"{origin} holds no study.", mistakes=told) from error


def create_study_with_code(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    *,
    code: Path | str | None = None,
    idempotency_key: str | None = None,
    wait_for_nodes: bool = False,
) -> Flow[StudyDetail]:
    """Create a study of a ``StudySpec``, a mapping, or the YAML or JSON file at a path; its first trials begin at once.

    Args:
        code: a folder to pack and upload, in place of the template's ``code``.
        idempotency_key: the same key never makes a second study; made when none is given.
        wait_for_nodes: create it also where no node that there is could ever hold one of its trials; such nodes are to come.
    """
    raw: dict[str, Any] = dict((yield RunBlocking(lambda: read_study(spec))))
    if code is None:
        return (yield from calls.create_study(raw, idempotency_key=idempotency_key, wait_for_nodes=wait_for_nodes))
    template = raw.get("template")
    if not isinstance(template, Mapping):
        raise InvalidSpec("template: code is for the trials' jobs, and the study has no template.")
    # A mistake shows before anything is packed.
    checked = {**raw, "template": {key: item for key, item in template.items() if key != "code"}}
    yield from calls.check_study(checked, wait_for_nodes=wait_for_nodes)
    folder = Path(code)
    packed: PackedFolder = yield RunBlocking(lambda: pack_folder(folder))
    try:
        digest = yield from upload_code(packed)
    finally:
        packed.remove()
    whole = {**raw, "template": {**template, "code": digest}}
    return (yield from calls.create_study(whole, idempotency_key=idempotency_key, wait_for_nodes=wait_for_nodes))


def wait_for_study(study: str, *, timeout_s: float | None = None) -> Flow[StudyDetail]:
    """The study once it has ended.

    Raises:
        WaitTimedOut: it has not within ``timeout_s``.
    """
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _FIRST_POLL_S
    while True:
        detail: StudyDetail = yield from calls.get_study(study)
        if detail.state in TERMINAL_STUDY_STATES:
            return detail
        if until_s is not None and time.monotonic() >= until_s:
            raise WaitTimedOut(f"Study {detail.name!r} is still {detail.state} after {timeout_s:g} s.")
        yield Pause(pause_s)
        pause_s = min(_MAX_POLL_S, pause_s * 1.5)


def is_automl_over(found: AutomlDetail) -> bool:
    """Whether nothing more happens: its study has ended and the best model, if there is one, is registered or has failed."""
    if found.state not in TERMINAL_STUDY_STATES:
        return False
    winner = found.winner
    return winner is None or winner.version_state is None or winner.version_state in FINAL_VERSION_STATES


def wait_for_automl(study: str, *, timeout_s: float | None = None) -> Flow[AutomlDetail]:
    """The AutoML study once its best model is registered, or nothing more will come of it.

    Raises:
        WaitTimedOut: neither within ``timeout_s``.
    """
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _FIRST_POLL_S
    while True:
        found: AutomlDetail = yield from automl.get_automl(study)
        if is_automl_over(found):
            return found
        if until_s is not None and time.monotonic() >= until_s:
            raise WaitTimedOut(f"AutoML study {found.name!r} is not over after {timeout_s:g} s.")
        yield Pause(pause_s)
        pause_s = min(_MAX_POLL_S, pause_s * 1.5)
