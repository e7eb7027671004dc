"""Runs what handles secrets, errors included, with every logger at its loudest, and looks for the secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from core.structured_log import configure_logging

VALUE = "wandb-key-0123456789"


@pytest.fixture
def loud(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    root = logging.getLogger()
    before = list(root.handlers)
    configure_logging("DEBUG")
    root.handlers += before
    caplog.set_level(logging.DEBUG)
    for name in ("sqlalchemy.engine", "sqlalchemy.pool", "uvicorn", "httpx"):
        caplog.set_level(logging.DEBUG, logger=name)
    yield caplog
    root.handlers[:] = before
    structlog.reset_defaults()


def test_no_token_and_no_secret_reaches_a_log_or_an_answer(
    house: Any, loud: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = house.call("member", "POST", "/tokens", json={"name": "x"}).json()["token"]
    answers = [
        house.call("owner", "PUT", "/projects/vision/secrets/KEY", json={"value": VALUE}),
        house.call("owner", "PUT", "/projects/vision/secrets/KEY", json={"value": VALUE, "extra": 1}),
        house.call("owner", "PUT", "/projects/vision/secrets/KEY", json={"value": [VALUE]}),
        house.call("owner", "GET", "/projects/vision/secrets"),
        house.call("owner", "GET", "/jobs/job-1"),
        house.call(made, "GET", "/me"),
        house.call(made, "GET", "/tokens"),
        house.call("attempt", "GET", "/me"),
        house.call("tm_unknown-token-of-nobody", "GET", "/me"),
    ]

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    # A bug in the middle of it: its traceback must not show what the variables hold.
    monkeypatch.setattr("core.secrets.Fernet", fail)
    broken = house.call("owner", "PUT", "/projects/vision/secrets/KEY", json={"value": VALUE})
    monkeypatch.setattr("api.tokens.TokenView", fail)
    also_broken = house.call(made, "POST", "/tokens", json={"name": "y"})
    assert (broken.status_code, also_broken.status_code) == (500, 500)

    out, err = capfd.readouterr()
    reported = "\n".join([out, err, loud.text, *(a.text for a in answers), broken.text, also_broken.text])
    assert "a bug" in out + err + loud.text, "the failure itself must be logged"
    attempt = house.auth("attempt")["Authorization"].removeprefix("Bearer ")
    for secret in (VALUE, made, attempt, "tm_owner", "tm_unknown-token-of-nobody", "k" * 40):
        assert secret not in reported, f"{secret[:6]}… was told: {_around(reported, secret)}"


def _around(text: str, part: str) -> str:
    at = text.index(part)
    return text[max(0, at - 200) : at].replace("\n", " ")
