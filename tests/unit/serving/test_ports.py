"""Ports as users write them."""

from __future__ import annotations

import pytest
from trainmaster.wire.serving import ServingSpec

from core.domain.serving.jobs import IMAGE_PORT, container_port, read_port


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("1", 1), ("65535", 65535), ("08080", 8080), ("0", None), ("65536", None), ("", None), ("-1", None),
        ("\u00b2", None), ("\u0661", None), ("1" * 5000, None), (" 80", None), ("8_0", None),
    ],
)  # fmt: skip
def test_a_port_is_plain_digits(text: str, port: int | None) -> None:
    assert read_port(text) == port
    spec = ServingSpec(model="output/m", env={"AIP_HTTP_PORT": text})
    assert container_port(spec) == (port or IMAGE_PORT)
