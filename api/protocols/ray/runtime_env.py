"""Parser of ``runtime_env``: supported fields, and refusals by name for the others.

https://docs.ray.io/en/latest/ray-core/api/doc/ray.runtime_env.RuntimeEnv.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from api.protocols.kit.errors import NotServed
from api.protocols.ray.requests import demand_known, texts_of
from core.domain.errors import InvalidRequest

PROTOCOL: Final = "gcs"
PACKAGE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.zip")
# Ignored: `excludes` (applied when the client packed), `config` (time-outs of Ray's installer), `_ray_commit` (the Ray
# that it would install).
_SERVED: Final = frozenset({"working_dir", "excludes", "pip", "env_vars", "image_uri", "config", "_ray_commit"})
_USE_PIP: Final = "is not served; name the packages in pip"
_USE_IMAGE: Final = "is not served; name an image that has it in image_uri, where the platform runs containers"
_ABSENT: Final = {
    "conda": _USE_PIP,
    "uv": _USE_PIP,
    "py_modules": "is not served; put the modules into the working_dir",
    "java_jars": "is not served",
    "container": "is not served; image_uri is, where the platform runs containers",
    "py_executable": "is not served; write the interpreter into the entrypoint",
    "worker_process_setup_hook": "is not served; call it in the script",
    "nsight": _USE_IMAGE,
    "rocprof_sys": _USE_IMAGE,
    "mpi": "is not served; jobs of the platform run MPI with several replicas",
}
_PIP_FIELDS: Final = frozenset({"packages", "pip_check", "pip_version", "pip_install_options"})
# Ray's defaults, which are ours, too.
_PIP_OPTIONS: Final = frozenset({"--disable-pip-version-check", "--no-cache-dir"})
_LINES: Final = 1_000
_LINE: Final = 1_000  # characters


@dataclass(frozen=True, slots=True)
class RuntimeEnv:
    """``package``: name of the uploaded zip; empty: none. ``requirements``: lines of a pip requirements file."""

    package: str = ""
    requirements: tuple[str, ...] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


def read_environment(raw: Mapping[str, Any]) -> RuntimeEnv:
    """Raises ``InvalidRequest``, or ``NotServed`` for unsupported features of Ray."""
    fields = {name: value for name, value in raw.items() if value not in (None, {}, [], "")}
    demand_known(fields, _SERVED, _ABSENT, "runtime_env.")
    image = fields.get("image_uri", "")
    if not isinstance(image, str):
        raise InvalidRequest("runtime_env.image_uri must be the name of an image.", field="runtime_env.image_uri")
    return RuntimeEnv(
        package=_package(fields.get("working_dir", "")),
        requirements=_requirements(fields.get("pip", [])),
        env_vars=texts_of(fields, "env_vars", "runtime_env."),
        image=image,
    )


def _package(uri: Any) -> str:
    at = "runtime_env.working_dir"
    if uri == "":
        return ""
    protocol, separator, name = uri.partition("://") if isinstance(uri, str) else ("", "", "")
    if separator and protocol != PROTOCOL:
        raise NotServed(
            f"{at}: a package at {protocol[:20]}:// is not served; give a local folder, which the client uploads.",
            field=at,
        )
    if not separator or not PACKAGE_NAME.fullmatch(name):
        raise InvalidRequest(f"{at} must be a package that was uploaded: {PROTOCOL}://<name>.zip.", field=at)
    return name


def _requirements(value: Any) -> tuple[str, ...]:
    at = "runtime_env.pip"
    if isinstance(value, Mapping):
        demand_known(value, _PIP_FIELDS, {}, f"{at}.")
        if value.get("pip_check"):
            raise NotServed(f"{at}.pip_check is not served; leave it out, or run `pip check` in the entrypoint.")
        if value.get("pip_version"):
            raise NotServed(f"{at}.pip_version is not served: the image's own pip installs; leave it out.")
        options = value.get("pip_install_options") or []
        if not isinstance(options, list) or not set(map(str, options)) <= _PIP_OPTIONS:
            raise NotServed(
                f"{at}.pip_install_options is not served; options of a requirements file may stand in packages.",
                field=f"{at}.pip_install_options",
            )
        value = value.get("packages", [])
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise InvalidRequest(f"{at} must be a list of requirements.", field=at)
    if len(value) > _LINES:
        raise InvalidRequest(f"{at} has more than {_LINES} requirements.", field=at)
    for line in value:
        if len(line) > _LINE or "\n" in line or "\0" in line or line.strip() == "--" or line.startswith("/"):
            raise InvalidRequest(f"{at}: {line[:60]!r} is no line of a requirements file that can be served.", field=at)
    return tuple(line for line in value if line.strip())
