from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainmaster.spec.quantity import (
    format_bytes,
    format_cpu,
    parse_bytes,
    parse_cpu_milli,
    parse_duration_s,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("2", 2000),
        (2, 2000),
        ("500m", 500),
        (0.5, 500),
        ("0.1", 100),
        ("1e-1", 100),
        ("0.0001", 1),
        (" 1 ", 1000),
        (".5", 500),
    ],
)
def test_cpus_are_thousandths_rounded_up(text, milli):
    assert parse_cpu_milli(text) == milli


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1Mi", 2**20),
        ("4Gi", 2**32),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("1e9", 10**9),
        (2**21, 2**21),
        ("2048Ki", 2**21),
    ],
)
def test_bytes_have_binary_and_decimal_units(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "1x", "0x10", "1 Gi", "--1", "+1", "1e", "1e9999", "1e999", "inf", "nan", "Infinity", "٣",
    "1" * 30, "1,5", "-1", "-0",
     True, None, [], {}, 10**4000, float("inf"), float("nan"), -1, "1e19Ei"],
)  # fmt: skip
def test_what_is_no_amount_is_refused(text):
    for parse in (parse_quantity, parse_cpu_milli, parse_bytes):
        with pytest.raises(ValueError, match=r"\S"):
            parse(text)


@pytest.mark.parametrize("zero", ["0", 0, "0m", "0e5", 0.0])
def test_nothing_is_no_amount_of_cpu_or_memory(zero):
    for parse in (parse_cpu_milli, parse_bytes):
        with pytest.raises(ValueError, match="0"):
            parse(zero)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4GB", "did you mean Gi"),
        ("4gb", "did you mean Gi"),
        ("4mb", "did you mean Mi"),
        ("4GiB", "did you mean Gi"),
        ("4g", "did you mean Gi"),
        ("4X", "units are"),
    ],
)
def test_a_unit_of_another_world_names_the_right_one(text, hint):
    with pytest.raises(ValueError, match=hint):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90),
        ("90", 90),
        ("90s", 90),
        ("1.5s", 1.5),
        ("30m", 1800),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1d1h1m1s", 90_061),
        (0, 0),
        (0.25, 0.25),
        (1e-05, 1e-05),
    ],
)
def test_durations_are_seconds(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "1w",
        "30m1h",
        "1h 30m",
        "-1",
        "1e3",
        "²",
        "٣",
        "9" * 400,
        "11d" * 2,
        True,
        None,
        [],
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        10**400,
        "4000d",
    ],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"\S"):
        parse_duration_s(text)


@given(st.integers(1, 10**8))
def test_cpus_are_written_as_they_are_read(milli):
    assert parse_cpu_milli(format_cpu(milli)) == milli


@given(st.integers(2**20, 2**63 - 1))
def test_bytes_are_written_as_they_are_read(count):
    assert parse_bytes(format_bytes(count)) == count
