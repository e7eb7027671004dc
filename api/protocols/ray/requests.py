"""A submission and its ``runtime_env`` as Ray's client sends them, read strictly, and mapped to our job spec.

The rest of Ray is refused by name.

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/openapi.html
https://docs.ray.io/en/latest/ray-core/api/doc/ray.runtime_env.RuntimeEnv.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from api.protocols.kit.errors import NotServed, refuse_unknown
from api.protocols.kit.json_values import command_with_packages, display_name, own_labels, shortened
from core.db.json import dump_json
from core.domain.contracts.tf_config import past_placeholders
from core.domain.errors import InvalidRequest, InvalidSpec

PROTOCOL: Final = "gcs"
PACKAGE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.zip")
# Characters that are safe in a URL path: the client does not escape the id.
_SUBMISSION_ID: Final = re.compile(r"[^/?#%\\\s\x00-\x1f\x7f]{1,200}")
_FIELDS: Final = frozenset(
    {
        "entrypoint",
        "submission_id",
        "job_id",
        "runtime_env",
        "metadata",
        "entrypoint_num_cpus",
        "entrypoint_num_gpus",
        "entrypoint_memory",
        "entrypoint_resources",
        "entrypoint_label_selector",
    }
)
_ABSENT_FIELDS: Final = {"retry_policy": "is not served: a driver runs once; leave it out"}
_STORED_LIMIT: Final = 64 * 1024  # bytes of JSON: lists of a project's jobs include each job's request
ENTRYPOINT_LIMIT: Final = 100_000  # characters; Linux takes no longer argument than 128 KiB
# Ignored: `excludes` (applied when the client packed), `config` (time-outs of Ray's installer), `_ray_commit` (the Ray
# that it would install).
_SERVED_IN_ENV: Final = frozenset({"working_dir", "excludes", "pip", "env_vars", "image_uri", "config", "_ray_commit"})
_USE_PIP: Final = "is not served; name the packages in pip"
_USE_IMAGE: Final = "is not served; name an image that has it in image_uri, where the platform runs containers"
_ABSENT_IN_ENV: Final = {
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
ROLE: Final = "worker"
_SUBMISSION_LABEL: Final = "ray-submission-id"
_ENTRYPOINT: Final = "RAY_JOB_ENTRYPOINT"
_LABEL_LIMIT: Final = 100  # of the metadata
# Ray's custom resource for an accelerator.
_ACCELERATOR: Final = "accelerator_type:"
_NODE_LABEL: Final = "ray.io/"  # labels that Ray itself gives its nodes
# Field of our spec -> field of Ray's request; the longest first.
_SPEC_FIELDS: Final = (
    (f"roles.{ROLE}.resources.gpu_type", "entrypoint_resources"),
    (f"roles.{ROLE}.resources.gpus", "entrypoint_num_gpus"),
    (f"roles.{ROLE}.resources.cpu", "entrypoint_num_cpus"),
    (f"roles.{ROLE}.resources.memory", "entrypoint_memory"),
    ("node_selector", "entrypoint_label_selector"),
    ("env", "runtime_env.env_vars"),
    ("image", "runtime_env.image_uri"),
    ("code", "runtime_env.working_dir"),
    ("command", "entrypoint"),
)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """``submission_id``: empty if the server generates one. Omitted numbers are ``None``."""

    entrypoint: str
    submission_id: str = ""
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def stored_fields(self) -> dict[str, Any]:
        """The request as sent; part of the job's details."""
        fields = {
            "entrypoint": self.entrypoint,
            "runtime_env": dict(self.runtime_env),
            "metadata": dict(self.metadata),
            "entrypoint_num_cpus": self.num_cpus,
            "entrypoint_num_gpus": self.num_gpus,
            "entrypoint_memory": self.memory,
            "entrypoint_resources": dict(self.resources) or None,
            "entrypoint_label_selector": dict(self.label_selector) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


def read_job(raw: Any) -> JobRequest:
    """Raises ``InvalidRequest``, or ``NotServed`` for unsupported features of Ray."""
    if not isinstance(raw, Mapping):
        raise InvalidRequest("The body must be a JSON object with an entrypoint.", field="body")
    raw = {name: value for name, value in raw.items() if value is not None}
    _refuse_unknown_fields(raw, _FIELDS, _ABSENT_FIELDS, "")
    entrypoint = raw.get("entrypoint", "")
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        raise InvalidRequest(
            f"entrypoint must be a command such as `python train.py`, got {shortened(entrypoint)}.", field="entrypoint"
        )
    if len(entrypoint) > ENTRYPOINT_LIMIT:
        raise InvalidRequest(
            f"entrypoint has more than {ENTRYPOINT_LIMIT:,} characters; put it into a script in the working_dir.",
            field="entrypoint",
        )
    memory = _number_of(raw, "entrypoint_memory")
    if memory is not None and not memory.is_integer():
        raise InvalidRequest(f"entrypoint_memory must be whole bytes, got {memory}.", field="entrypoint_memory")
    runtime_env = raw.get("runtime_env", {})
    if not isinstance(runtime_env, Mapping):
        raise InvalidRequest(f"runtime_env must be a dict, got {shortened(runtime_env)}.", field="runtime_env")
    for name, value in (("metadata", raw.get("metadata")), ("runtime_env", runtime_env)):
        if len(dump_json(value)) > _STORED_LIMIT:
            raise InvalidRequest(
                f"{name} has more than {_STORED_LIMIT // 1024} KiB; put it into a file in the working_dir.", field=name
            )
    return JobRequest(
        entrypoint=entrypoint,
        submission_id=_submission_id(raw),
        runtime_env=runtime_env,
        metadata=_texts_of(raw, "metadata"),
        num_cpus=_number_of(raw, "entrypoint_num_cpus"),
        num_gpus=_number_of(raw, "entrypoint_num_gpus"),
        memory=int(memory) if memory else None,
        resources=_amounts(raw),
        label_selector=_texts_of(raw, "entrypoint_label_selector"),
    )


def _refuse_unknown_fields(
    raw: Mapping[str, Any], served: Collection[str], absent: Mapping[str, str], where: str
) -> None:
    """Refuse names that are not in ``served``. ``absent``: Ray's unsupported fields -> message."""

    def at(name: str) -> str:
        return f"{where}{name}"[:200]

    refuse_unknown(
        raw,
        served,
        absent,
        refusal=lambda name, what: NotServed(f"{at(name)} {what}.", field=at(name)),
        unknown=lambda name: InvalidRequest(
            f"{at(name)} is not known to this platform, which serves what Ray 2.60 sends; leave it out.", field=at(name)
        ),
    )


def _texts_of(raw: Mapping[str, Any], name: str, where: str = "") -> dict[str, str]:
    """A dict of text to text; empty if omitted."""
    value = raw.get(name, {})
    at = f"{where}{name}"
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{at} must be a dict, got {shortened(value)}.", field=at)
    for key, text in value.items():
        if not isinstance(text, str):
            raise InvalidRequest(f"{at} values must be strings, got {shortened(text)} for {shortened(key)}.", field=at)
    return dict(value)


def _number_of(raw: Mapping[str, Any], name: str) -> float | None:
    """A finite number of at least 0; ``None`` if omitted."""
    value = raw.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"{name} must be a number from 0 on, got {shortened(value)}.", field=name)
    return float(value)


def _amounts(raw: Mapping[str, Any]) -> dict[str, float]:
    value = raw.get("entrypoint_resources", {})
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f"entrypoint_resources must be a dict, got {shortened(value)}.", field="entrypoint_resources"
        )
    amounts = {}
    for name in value:
        try:
            amounts[name] = _number_of(value, name) or 0.0
        except InvalidRequest as error:
            raise InvalidRequest(f"entrypoint_resources.{error.sentence}", field="entrypoint_resources") from error
    return amounts


def _submission_id(raw: Mapping[str, Any]) -> str:
    """``job_id`` is its former name."""
    name = "submission_id" if raw.get("submission_id") else "job_id"
    value = raw.get(name, "")
    if value == "":
        return ""
    if not isinstance(value, str) or not _SUBMISSION_ID.fullmatch(value) or value in (".", ".."):
        raise InvalidRequest(
            f"{name} must be at most 200 characters without spaces, /, \\, ?, # and %, got {shortened(value)}.",
            field=name,
        )
    return value


# --- runtime_env -----------------------------------------------------------------------------------------------------


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
    _refuse_unknown_fields(fields, _SERVED_IN_ENV, _ABSENT_IN_ENV, "runtime_env.")
    image = fields.get("image_uri", "")
    if not isinstance(image, str):
        raise InvalidRequest("runtime_env.image_uri must be the name of an image.", field="runtime_env.image_uri")
    return RuntimeEnv(
        package=_package(fields.get("working_dir", "")),
        requirements=_requirements(fields.get("pip", [])),
        env_vars=_texts_of(fields, "env_vars", "runtime_env."),
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
        _refuse_unknown_fields(value, _PIP_FIELDS, {}, f"{at}.")
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


def job_spec_of(
    project: str, submission_id: str, request: JobRequest, environment: RuntimeEnv, code: str | None
) -> dict[str, Any]:
    """Our job spec, not yet validated. Raises ``NotServed`` for unsupported resources."""
    resources, selector = _resources(request)
    labels = own_labels({**dict(list(request.metadata.items())[:_LABEL_LIMIT]), _SUBMISSION_LABEL: submission_id})
    # Placeholders in an entrypoint are literal text.
    entrypoint, carried = past_placeholders(request.entrypoint, _ENTRYPOINT)
    spec: dict[str, Any] = {
        "name": display_name(request.metadata.get("job_name") or submission_id, "ray-job"),
        "project": project,
        "command": _command(entrypoint, environment),
        "env": {**environment.env_vars, **carried},
        # One driver process, however many GPUs; Ray starts it once.
        "roles": {ROLE: {"replicas": 1, "resources": resources, "processes_per_replica": 1}},
        "labels": labels,
        "max_restarts": 0,
        "node_selector": selector,
    }
    if code is not None:
        spec["code"] = code
    if environment.image:
        spec["image"] = environment.image
    return spec


def _command(entrypoint: str, environment: RuntimeEnv) -> str | list[str]:
    if not environment.requirements:
        return entrypoint
    return command_with_packages(environment.requirements, "/bin/sh", "-c", entrypoint)


def _resources(request: JobRequest) -> tuple[dict[str, Any], dict[str, str]]:
    """Resources of the replica, and its node selector."""
    resources: dict[str, Any] = {}
    if request.num_cpus:
        resources["cpu"] = request.num_cpus
    if request.memory:
        resources["memory"] = request.memory
    if request.num_gpus:
        whole = int(request.num_gpus) if request.num_gpus.is_integer() else None
        resources["gpus"] = request.num_gpus if whole is None else whole
    for name, amount in request.resources.items():
        if not amount:
            continue
        if not name.startswith(_ACCELERATOR):
            raise NotServed(
                f"entrypoint_resources.{name[:100]}: custom resources are not served by this platform, but for "
                f"{_ACCELERATOR}<model>; choose nodes by their labels (entrypoint_label_selector).",
                field="entrypoint_resources",
            )
        resources.setdefault("gpu_type", []).append(name.removeprefix(_ACCELERATOR))
    for name, value in request.label_selector.items():
        if name.startswith(_NODE_LABEL) or value.startswith(("!", "in(")):
            raise NotServed(
                f"entrypoint_label_selector.{name[:100]}: {value[:60]!r} is not served; give a label of nodes and "
                "its one value.",
                field="entrypoint_label_selector",
            )
    return resources, dict(request.label_selector)


def translated_message(error: InvalidSpec) -> str:
    """The error message with the request's field names."""
    if not error.errors:
        return error.sentence
    mistakes = []
    for mistake in error.errors[:3]:
        path = str(mistake["path"] or "")
        for own_field, ray_field in _SPEC_FIELDS:
            if path == own_field or path.startswith((f"{own_field}.", f"{own_field}[")):
                path = ray_field + path.removeprefix(own_field)
                break
        hint = f" ({mistake['hint']})" if mistake.get("hint") else ""
        mistakes.append(f"{path}: {mistake['message']}{hint}" if path else f"{mistake['message']}{hint}")
    return "; ".join(mistakes) + "."
