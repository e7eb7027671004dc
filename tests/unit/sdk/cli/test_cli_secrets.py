"""secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

Invoke = Callable[..., Result]


def test_a_secret_comes_from_stdin_and_is_never_printed(cli: Invoke, server: Any) -> None:
    server.on("PUT", "/projects/default/secrets/KEY", {"name": "KEY", "updated_at": "2026-11-21T07:00:00Z"})
    done = cli("secrets", "set", "KEY", stdin="hush hush\n")
    assert done.exit_code == 0
    assert "hush" not in done.output
    assert server.bodies("PUT", "/projects/default/secrets/KEY") == [{"value": "hush hush"}]
    assert cli("secrets", "set", "KEY", "hush", stdin="").exit_code == 2


def test_a_wrong_name_is_reported_before_a_value_is_requested(cli: Invoke, server: Any) -> None:
    done = cli("secrets", "set", "my-key", "--json", stdin="hush\n")
    assert done.exit_code == 2
    assert "'my-key' is not a variable name: letters, digits and '_'" in json.loads(done.stderr)["detail"]
    assert server.requests == []
