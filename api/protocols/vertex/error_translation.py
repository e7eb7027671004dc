"""Error translation: maps fields of our job spec, and our cursors, to the fields of Vertex AI's requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from api.http.cursors import read_cursor
from api.http.paging import read_position
from api.protocols.vertex.training.mapping import ROLES
from api.protocols.vertex.training.specs import CustomJobSpec
from core.domain.errors import InvalidRequest, InvalidSpec

# Field of our job spec -> field of the request.
_FIELDS: Final = {
    "max_run_time": "scheduling.timeout",
    "max_wait": "scheduling.max_wait_duration",
    "max_restarts": "scheduling.restart_job_on_worker_restart",
    "output": "base_output_directory",
    "priority": "scheduling.strategy",
}
# Fields of a role's resources; all others come from the machine type.
_MACHINE_FIELDS: Final = {"resources.gpus": "accelerator_count", "resources.gpu_type": "accelerator_type"}
_PROGRAM_FIELDS: Final = ("command", "args", "env")
_ROLE: Final = re.compile(rf"roles\.(?P<role>{'|'.join(ROLES)})(?:\.(?P<rest>.+))?")
_SHOWN: Final = 5  # mistakes in one sentence


@contextmanager
def translated_errors(spec: CustomJobSpec) -> Iterator[None]:
    """Replace errors that name fields of our job spec by ``InvalidRequest`` with the fields of the client's ``spec``.

    All mistakes are in one message: Google's errors have no list.
    """
    try:
        yield
    except (InvalidSpec, InvalidRequest) as error:
        if error.errors:
            mistakes = [
                (
                    mistake["path"] or "",
                    f"{mistake['message']} ({mistake['hint']})" if mistake["hint"] else str(mistake["message"]),
                )
                for mistake in error.errors
            ]
        else:
            own, _, rest = str(error.sentence).partition(": ")
            mistakes = [(own, rest.removesuffix("."))]
        places = [_client_path(path, spec) for path, _ in mistakes]
        if len(mistakes) == 1 and places[0] is None:
            raise
        words = [
            f"{place or path}: {what}" if path else what
            for place, (path, what) in zip(places[:_SHOWN], mistakes[:_SHOWN], strict=True)
        ]
        more = f"; and {len(mistakes) - _SHOWN} more" if len(mistakes) > _SHOWN else ""
        raise InvalidRequest(f"{'; '.join(words)}{more}.", field=places[0] or mistakes[0][0]) from error


def _client_path(path: str, spec: CustomJobSpec) -> str | None:
    """The request's field behind ``path`` of our spec; ``None`` if there is none."""
    if path in _FIELDS:
        return _FIELDS[path]
    if path == "command":  # of a job with one role
        path = f"roles.{ROLES[0]}.command"
    found = _ROLE.fullmatch(path)
    pool = spec.pools[ROLES.index(found["role"])] if found and ROLES.index(found["role"]) < len(spec.pools) else None
    if found is None or pool is None:
        return None
    rest = found["rest"] or ""
    name = re.split(r"[.\[]", rest, maxsplit=1)[0]
    program = "python_package_spec" if pool.program.module else "container_spec"
    if name in _PROGRAM_FIELDS:
        return f"{pool.path}.{program}.{rest}"
    if name == "image":
        return f"{pool.path}.{program}.{'executor_image_uri' if pool.program.module else 'image_uri'}"
    if name == "resources":
        return ".".join(filter(None, (pool.path, "machine_spec", _MACHINE_FIELDS.get(rest))))
    return f"{pool.path}.replica_count" if name == "replicas" else pool.path


def list_position(token: str) -> tuple[datetime, str]:
    """The position at which a page ended, from its ``nextPageToken``. Raises ``InvalidRequest``."""
    with _as_page_token():
        return read_position(token)


def token_parts(token: str, kinds: Sequence[type]) -> list[Any]:
    """As :func:`position_of`, of a token with such parts."""
    with _as_page_token():
        return read_cursor(token, kinds)


@contextmanager
def _as_page_token() -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(
            "page_token: not a token of this list; send `next_page_token` as it came, or leave it out.",
            field="page_token",
        ) from error
