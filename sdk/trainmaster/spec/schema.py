"""The JSON Schema of a job spec as users write it, for editors and other programs."""

from __future__ import annotations

from typing import Any, Final

from trainmaster.spec.enums import MAX_REPLICAS
from trainmaster.spec.fields import ROLE_PATTERN
from trainmaster.spec.model import JobSpec
from trainmaster.spec.shorthand import Shorthands

SCHEMA_ID: Final = "urn:trainmaster:schema:job-spec:v1"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TITLE: Final = "Trainmaster job spec"
_EXAMPLES: Final[list[dict[str, Any]]] = [
    {"name": "digits", "command": "python train.py", "workers": 2, "gpus": 1, "input": "datasets/digits"},
    {
        "name": "wide-and-deep",
        "image": "registry.example/team/train:7",
        "command": ["python", "train.py"],
        "args": ["--epochs", 3],
        "roles": {
            "chief": 1,
            "worker": {"replicas": 4, "resources": {"cpu": 8, "memory": "32Gi", "gpus": 2, "gpu_type": "A100"}},
            "ps": {"replicas": 2, "resources": {"cpu": "500m", "memory": "4Gi"}},
            "evaluator": 1,
        },
        "max_restarts": 5,
        "max_run_time": "12h",
        "labels": {"team": "search"},
    },
]


def spec_json_schema() -> dict[str, Any]:
    """Schema (draft 2020-12) of a job spec as users write it, shorthands included.

    ``parse_spec`` is stricter about rules between fields, and more lenient about a few spellings (``yes`` for true).
    """
    schema = JobSpec.model_json_schema(mode="validation")
    short = Shorthands.model_json_schema(mode="validation")
    definitions = {**schema.pop("$defs", {}), **short.pop("$defs", {})}
    properties = {**schema["properties"], **short["properties"]}
    roles = properties["roles"]
    # In the model a role is a mapping; users may also write just its replicas, or nothing for one replica.
    roles["patternProperties"] = {
        ROLE_PATTERN: {
            "anyOf": [
                {"$ref": "#/$defs/RoleSpec"},
                {"type": "integer", "minimum": 1, "maximum": MAX_REPLICAS, "title": "Replicas"},
                {"type": "null", "title": "One replica"},
            ]
        }
    }
    roles.pop("minProperties", None)
    replicas = definitions["RoleSpec"]["properties"]["replicas"]
    bounds = {key: replicas.pop(key) for key in ("type", "minimum", "maximum")}
    replicas["anyOf"] = [bounds, {"$ref": "#/$defs/ReplicaRange"}]
    schema = {
        "$schema": _DIALECT,
        "$id": SCHEMA_ID,
        "title": _TITLE,
        "description": schema.get("description", ""),
        "type": "object",
        "properties": properties,
        "required": ["name"],
        "patternProperties": {"^x-": {"title": "Ignored", "description": "Ignored; for YAML anchors."}},
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
        "examples": _EXAMPLES,
    }
    for definition in schema["$defs"].values():
        if definition.get("type") == "object":
            definition["additionalProperties"] = False
    for owner in (schema, *schema["$defs"].values()):
        _empty_is_unwritten(owner)
    return schema


def _empty_is_unwritten(owner: dict[str, Any]) -> None:
    """Allow null for every optional field: in YAML a field may be left empty (``image:``)."""
    properties = owner.get("properties", {})
    for name, field in properties.items():
        if "patternProperties" in field:
            field["additionalProperties"] = False
        if name in owner.get("required", ()):
            continue
        choices = field.get("anyOf")
        if choices is not None:
            if {"type": "null"} not in choices:
                choices.append({"type": "null"})
        elif isinstance(field.get("type"), str):
            field["type"] = [field["type"], "null"]
        elif "$ref" in field:
            reference = {"$ref": field.pop("$ref")}
            properties[name] = {"anyOf": [reference, {"type": "null"}], **field}
