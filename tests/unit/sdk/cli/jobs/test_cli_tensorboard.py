from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

Invoke = Callable[..., Result]
LINK = {"path": "/tensorboard/secret/", "jobs": ["job_1", "job_2"], "expires_at": "2026-11-22T07:00:00Z"}


def test_tensorboard_prints_the_whole_address_alone_so_that_a_script_may_take_it(cli: Invoke, server: Any) -> None:
    server.on("POST", "/tensorboards", LINK)
    answer = cli("tensorboard", "mnist", "cifar")
    assert answer.exit_code == 0, answer.stderr
    url = answer.stdout.strip()
    assert url.startswith("http")
    assert url.endswith("/tensorboard/secret/")
    assert json.loads(server.requests[-1].content) == {"jobs": ["mnist", "cifar"]}
    as_json = json.loads(cli("tensorboard", "mnist", "--json").stdout)
    assert as_json["url"] == url
    assert as_json["jobs"] == LINK["jobs"]
