"""The job spec: the public schema of a training job, shared by the server, the SDK and the CLI."""

from __future__ import annotations

from trainmaster.spec.enums import Contract, Launcher, RestartPolicy, ServerPlacement, TopologyLevel, Warm
from trainmaster.spec.model import Environment, Grace, JobSpec, Mount, Resources, RoleSpec, Topology
from trainmaster.spec.parse import (
    SpecError,
    SpecMistake,
    parse_spec,
    parse_spec_text,
    read_spec_text,
    spec_json_schema,
)
from trainmaster.spec.shorthand import with_changes

__all__ = [
    "Contract",
    "Environment",
    "Grace",
    "JobSpec",
    "Launcher",
    "Mount",
    "Resources",
    "RestartPolicy",
    "RoleSpec",
    "ServerPlacement",
    "SpecError",
    "SpecMistake",
    "Topology",
    "TopologyLevel",
    "Warm",
    "parse_spec",
    "parse_spec_text",
    "read_spec_text",
    "spec_json_schema",
    "with_changes",
]
