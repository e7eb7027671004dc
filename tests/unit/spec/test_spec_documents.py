"""YAML and JSON text: read as it looks, within bounds, and refused with the place of the mistake."""

from __future__ import annotations

import json
import pickle

import pytest
from trainmaster.spec import SpecError, parse_spec_text, read_spec_text
from trainmaster.spec.document import MAX_TEXT_BYTES, plain_scalar, read_document


def refusal_of(text) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec_text(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("off", "off"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("010", 10),
        ("0o10", 8),
        ("0x1f", 31),
        ("-3", -3),
        ("1.10", 1.1),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        (".", "."),
        ("0b1", "0b1"),
        ("1.2.3", "1.2.3"),
        ("0x", "0x"),
        ("=", "="),
    ],
)
def test_a_scalar_is_what_yaml_1_2_says(text, value):
    read = plain_scalar(text)
    assert read == value
    assert isinstance(read, type(value))


def test_quoted_scalars_are_text():
    assert read_document("a: \"1\"\nb: 'true'\nc: !!str 2\n") == {"a": "1", "b": "true", "c": "2"}


def test_numbers_remember_their_text_through_a_pickle():
    number = pickle.loads(pickle.dumps(plain_scalar("1.10")))  # noqa: S301 - our own bytes
    assert (number, number.text) == (1.1, "1.10")
    number = pickle.loads(pickle.dumps(plain_scalar("007")))  # noqa: S301
    assert (number, number.text) == (7, "007")


def test_keys_are_the_text_that_was_written():
    assert read_document("on: 1\n1.10: 2\ntrue: 3\n2024-01-01: 4") == {"on": 1, "1.10": 2, "true": 3, "2024-01-01": 4}


def test_merge_keys_give_what_the_mapping_does_not_say_itself():
    text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 9}\nd: {'<<': 1}"
    data = read_document(text)
    assert data["c"] == {"x": 9, "y": 2, "z": 4}
    assert data["d"] == {"<<": 1}


def test_aliases_serve_as_keys_and_values():
    assert read_document("a: &k name\n*k : 1\nb: *k") == {"a": "name", "name": 1, "b": "name"}


def test_bytes_with_a_byte_order_mark_are_read():
    assert read_document(b"\xef\xbb\xbfname: x") == {"name": "x"}
    assert read_document("\ufeffname: x") == {"name": "x"}


def test_json_is_read_by_its_own_rules():
    text = json.dumps({"name": "a", "command": "echo \U0001f600 \t", "env": {"A": 1.10}}, indent="\t")
    assert read_document(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("---\n", "a mapping of fields, not empty"),
        ("- name: a", "a mapping of fields, not a list"),
        ("just text", "a mapping of fields, not text"),
        ("name: a\n  command: b", "line 2, column"),
        ("name: [a", "from line 1, column 7"),
        ("name: a\n\tcommand: x", "indent with spaces"),
        ("name: @x", "line 1, column 7: not YAML"),
        ("name: a\nname: b", "name: line 2, column 1: is written twice"),
        ("roles: {worker: {env: {A: 1, A: 2}}}", "roles.worker.env.A: line 1"),
        ('{"name": "a", "name": "b"}', "name: is written twice"),
        ("a: *x", "the anchor *x is not defined"),
        ("a: &x [*x]", "the anchor *x contains itself"),
        ("a: &x {b: *x}", "the anchor *x contains itself"),
        ("a: !!python/object/apply:os.system [x]", "the tag !!python/object/apply:os.system"),
        ("a: !include x", "the tag !include"),
        ("? [a, b]\n: c", "a key must be text"),
        ("? {a: b}\n: c", "a key must be text"),
        ("~: c", "a key is empty"),
        ("a: {<<: 3}", "`<<` merges only mappings"),
        ("name: a\n---\nname: b", "line 2, column 1: a second document"),
        ("name: a\x00", "control character"),
        ("name: a\x1b[0m", "control character"),
        ("name: \ud800", "half a character"),
        ('{"name": "\\ud800"}', "half a character"),
        ('{"priority": NaN}', "is nan, not a number"),
        ('{"priority": 1e999}', "is inf, not a number"),
        ("priority: .inf", "is inf, not a number"),
        ("priority: " + "9" * 5000, "is inf, not a number"),
        ("%YAML 9.9\n---\na: 1", "not YAML"),
        (b"\xff\xfen\x00", "is not UTF-8"),
        (b"name: \xe4", "byte 7 is not UTF-8"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(text, words):
    assert words in refusal_of(text)


def test_every_duplicate_key_is_reported_at_once():
    assert len(refusal_of("a: 1\na: 2\nb: 3\nb: 4\na: 5").splitlines()) == 3


@pytest.mark.parametrize("opening", ["[", "{", "{a: ", '{"a":', '[[{"a":', "- ", "? ", "a:\n "])
def test_nesting_is_bounded(opening):
    assert refusal_of(opening * 20_000)


def test_a_billion_laughs_are_counted_before_they_are_built():
    lines = ["x0: &x0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]" for i in range(1, 20)]
    assert "more than 100000 values" in refusal_of("\n".join(lines))
    lines = ["x0: &x0 {a: b}"] + [f"x{i}: &x{i} {{<<: *x{i - 1}, a{i}: *x{i - 1}}}" for i in range(1, 40)]
    assert refusal_of("\n".join(lines))


def test_a_text_has_an_upper_bound():
    assert "larger than 1 MiB" in refusal_of("a: " + "x" * MAX_TEXT_BYTES)
    assert "larger than 1 MiB" in refusal_of("a: " + "ä" * (MAX_TEXT_BYTES // 2))


def test_many_small_values_are_refused():
    assert "more than 100000 values" in refusal_of("a: [" + "1," * 300_000 + "]")


def test_reading_gives_the_fields_as_they_were_written():
    assert read_spec_text("name: a\nworkers: 2\nx-any: 3\n") == {"name": "a", "workers": 2, "x-any": 3}
