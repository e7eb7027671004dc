"""One replica's whole environment and command: all contracts at once, the user's own variables over all."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from trainmaster.spec import JobSpec
from trainmaster.spec.shelltext import has_placeholder

from core.domain.contracts import common, frameworks, mlflow, tf_config, uai, vertex
from core.domain.contracts.context import AttemptContext, ReplicaContext
from core.domain.jobs.layout import Layout, ReplicaAddress

# Linux limits "NAME=value" to MAX_ARG_STRLEN (32 pages, with its closing zero byte): execve fails with E2BIG.
_MAX_ENTRY_BYTES: Final = 131_071
_NO_SECRETS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RenderedReplica:
    """Everything that one replica is started with.

    ``env`` is for the replica as a whole; ``process_env[i]`` is laid over it for local process ``i`` (one entry per
    process, empty for a single one). ``command`` is a list to execute, a text for ``/bin/sh -c``, or ``None`` for the
    image's own; a text includes its arguments. ``files``: path -> content, written before the start. ``clashes``:
    variables of the platform that the user's values replace. ``omitted``: variables of the platform that exceed
    Linux's limit (a gang of thousands) and were left out.
    """

    env: Mapping[str, str]
    process_env: tuple[Mapping[str, str], ...]
    command: tuple[str, ...] | str | None
    args: tuple[str, ...]
    files: Mapping[str, str]
    clashes: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()


def render(
    spec: JobSpec,
    layout: Layout,
    replica: ReplicaAddress,
    context: AttemptContext,
    *,
    secrets: Mapping[str, str] = _NO_SECRETS,
) -> RenderedReplica:
    """Everything that ``replica`` of ``layout`` is started with. Deterministic.

    Args:
        secrets: name -> value of the spec's secrets; they are the user's own variables like ``env``.
    """
    replica_context = ReplicaContext(spec, layout, replica, context)
    user_env = {**secrets, **spec.role_env(replica.role)}
    platform_env = mlflow.for_own_server(_replica_variables(replica_context), user_env)
    per_process = [
        frameworks.process_variables(replica_context, local_rank) for local_rank in range(replica_context.processes)
    ]
    if len(per_process) == 1:
        # One process: merge its variables into the replica's, so that an engine without processes needs no second map.
        platform_env |= per_process[0]
        per_process = [{}]
    names = set(platform_env).union(*per_process)
    omitted = {name for name, value in platform_env.items() if len(f"{name}={value}".encode()) > _MAX_ENTRY_BYTES}
    command, args = _call(replica_context)
    return RenderedReplica(
        env={name: value for name, value in platform_env.items() if name not in omitted} | user_env,
        process_env=tuple(
            {name: value for name, value in process.items() if name not in user_env} for process in per_process
        ),
        command=command,
        args=args,
        files=frameworks.files(replica_context) | common.files(replica_context),
        clashes=tuple(
            sorted(
                name for name in (names & set(user_env)) - common.DEFAULTS if platform_env.get(name) != user_env[name]
            )
        ),
        omitted=tuple(sorted(omitted - set(user_env))),
    )


def _replica_variables(replica_context: ReplicaContext) -> dict[str, str]:
    env: dict[str, str] = {}
    for contract in (common, mlflow, tf_config, vertex, frameworks):
        env |= contract.variables(replica_context)
    if replica_context.is_uai:
        env |= uai.variables(replica_context)
    if replica_context.is_serving:
        env |= vertex.serving_variables(replica_context)
    return env


def _call(replica_context: ReplicaContext) -> tuple[tuple[str, ...] | str | None, tuple[str, ...]]:
    """Command and arguments, placeholders filled in."""
    command, args = replica_context.command, replica_context.args
    if replica_context.is_uai:
        command, args = uai.command(command), (*args, *uai.arguments(replica_context))
    args = tuple(tf_config.fill_placeholders(arg, replica_context) for arg in args)
    if command is None:
        return None, args
    if isinstance(command, str):
        # `sh -c text word` would pass the word to the shell, not to the program: arguments go into the text, at its end
        # or at "$@".
        filled = tf_config.fill_placeholders(command, replica_context)
        if args and has_placeholder(command):
            return f"set -- {shlex.join(args)}; {filled}", ()
        return (f"{filled.rstrip()} {shlex.join(args)}" if args else filled), ()
    return tuple(tf_config.fill_placeholders(word, replica_context) for word in command), args
