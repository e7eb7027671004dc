"""What Cloud Storage has and buckets here have not is refused by its name, and never dropped; what clients always send
is taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from api.protocols.gcs.parameters import ABSENT, demand_served, refuse_unknown_parameters
from api.protocols.kit.errors import NotServed
from api.protocols.kit.field_mask import read_selection, select
from core.domain.errors import InvalidRequest
from core.settings import Settings
from tests.unit.api_vertex.one_database import database_url  # noqa: F401 (a fixture)
from tests.unit.api_vertex.test_storage import API, UPLOAD, begin, error_of, multipart

# Each of the resource's fields that a client may set, with a value that says something.
# https://cloud.google.com/storage/docs/json_api/v1/objects#resource-representations
SET: dict[str, Any] = {
    "acl": [{"entity": "allUsers", "role": "READER"}],
    "cacheControl": "no-store",
    "contentDisposition": "inline",
    "contentEncoding": "gzip",
    "contentLanguage": "de",
    "contexts": {"custom": {"a": {"value": "b"}}},
    "customTime": "2026-01-01T00:00:00Z",
    "eventBasedHold": True,
    "kmsKeyName": "projects/p/locations/l/keyRings/r/cryptoKeys/k",
    "metadata": {"colour": "red"},
    "retention": {"mode": "Locked"},
    "storageClass": "COLDLINE",
    "temporaryHold": True,
}


@pytest.fixture
def data(settings: Settings, client: TestClient) -> Path:
    return settings.home / "data"


@pytest.mark.parametrize("name", sorted(SET))
def test_a_field_that_would_be_dropped_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(NotServed, match=f"^{name}: .* not served by this platform") as refused:
        demand_served({"name": "x", name: SET[name]}, "data")
    assert refused.value.field == name
    nothings: list[Any] = [None, ""] if name == "storageClass" else [None, "", [], {}, False]
    for nothing in nothings:  # what says nothing asks for nothing
        demand_served({name: nothing}, "data")


def test_a_resource_as_the_server_gave_it_is_taken_and_an_unknown_name_is_not(client: TestClient, data: Path) -> None:
    own = multipart(client, "a", b"1").json()
    taken = {name: own[name] for name in own if name not in ("name", "bucket", "crc32c", "md5Hash")}
    assert multipart(client, "b", b"22", **taken).status_code == 200
    assert 'Unknown name "colour"' in error_of(multipart(client, "c", b"x", colour="red"), 400)
    assert "storageClass 'WARM' is none" in error_of(multipart(client, "c", b"x", storageClass="WARM"), 400)
    assert "is none" in error_of(multipart(client, "c", b"x", storageClass=[]), 400)
    elsewhere = client.post(f"{UPLOAD}/data/o?uploadType=resumable", json={"name": "c", "bucket": "other"})
    assert "names another one" in error_of(elsewhere, 400)
    refused = client.post(f"{UPLOAD}/data/o?uploadType=resumable", json={"name": "c", "metadata": {"a": "b"}})
    assert "metadata: metadata of one's own is not served" in error_of(refused, 501)
    assert refused.json()["error"]["errors"][0]["reason"] == "notImplemented"
    assert "holds nothing" in error_of(multipart(client, "folder/", b"x"), 400)
    assert multipart(client, "folder/", b"").status_code == 200
    assert not (data / "c").exists()


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_a_parameter_that_would_be_ignored_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(NotServed, match=f"^{name}: .* not served by this platform"):
        refuse_unknown_parameters({name: "true"}, {}, ())
    refuse_unknown_parameters({name: "false"}, {}, ())


def test_every_route_knows_its_parameters_and_headers(client: TestClient) -> None:
    always = "prettyPrint=false&alt=json&quotaUser=me&%24.xgafv=1&projection=noAcl"
    multipart(client, "x", b"1", query=f"&{always}&name=y")
    assert client.get(f"{API}/data/o/y?{always}").json()["name"] == "y"  # the address comes before the metadata
    assert client.get(f"{API}/data/o?{always}&versions=true").json()["items"][0]["name"] == "y"
    assert client.get(f"{API}?{always}&project=p&maxResults=1").json()["items"][0]["name"] == "data"
    for answer, status, word in (
        (client.get(f"{API}/data?userProject=p"), 501, "userProject: billing"),
        (client.get(f"{API}/data/o?matchGlob=*"), 501, "matchGlob"),
        (client.get(f"{API}/data/o/y?projection=some"), 400, "projection"),
        (client.get(f"{API}/data/o/y?alt=proto"), 400, "alt"),
        (client.get(f"{API}/data/o/y?colour=red"), 400, '"colour"'),
        (client.get(f"{API}/data/o/y?ifGenerationMatch=x"), 400, "ifGenerationMatch"),
        (multipart(client, "z", b"1", query="&predefinedAcl=publicRead"), 501, "predefinedAcl"),
        (client.delete(f"{API}/data/o/y?userProject=p"), 501, "userProject"),
        (client.get(f"{API}/data/o/y", headers={"X-Goog-Encryption-Algorithm": "AES256"}), 501, "x-goog-encryption"),
        (
            client.post(f"{UPLOAD}/data/o?uploadType=media&name=z", content=b"1", headers={"content-encoding": "gzip"}),
            501,
            "Content-Encoding",
        ),
    ):
        assert word in error_of(answer, status)
    assert [one["name"] for one in client.get(f"{API}/data/o").json()["items"]] == ["y"]


def test_generations_and_etags_guard_what_is_read(client: TestClient) -> None:
    reply = multipart(client, "x", b"1").json()
    place, media = f"{API}/data/o/x", "/download/storage/v1/b/data/o/x?alt=media"
    own = reply["generation"]
    assert client.get(f"{place}?generation={own}&ifGenerationMatch={own}&ifMetagenerationMatch=1").json() == reply
    assert f"data/x#{int(own) - 1}" in error_of(client.get(f"{media}&generation={int(own) - 1}"), 404)
    error_of(client.delete(f"{place}?generation=1"), 404)
    for where in (place + "?alt=json", media):
        error_of(client.get(f"{where}&ifGenerationMatch=1"), 412)
        error_of(client.get(f"{where}&ifMetagenerationMatch=2"), 412)
        for known in (f"&ifGenerationNotMatch={own}", "&ifMetagenerationNotMatch=1"):
            answer = client.get(where + known)
            assert (answer.status_code, answer.content) == (304, b"")
        assert client.get(where, headers={"if-none-match": reply["etag"]}).status_code == 304
        assert client.get(where, headers={"if-match": f'"{reply["etag"]}"'}).status_code == 200
        error_of(client.get(where, headers={"if-match": "another"}), 412)
    assert client.get(media).headers["x-goog-generation"] == own
    assert "not satisfiable" in error_of(client.get(media, headers={"range": "bytes=5-"}), 416)
    error_of(multipart(client, "x", b"2", query="&ifMetagenerationMatch=2"), 412)
    place_of_session = begin(client, "x", query="&ifMetagenerationMatch=1")
    error_of(client.get(f"{API}/data?ifMetagenerationMatch=2"), 412)
    assert client.delete(f"{place}?generation={own}").status_code == 204
    error_of(client.put(place_of_session, content=b"2"), 412)


def test_a_choice_of_fields_is_what_an_answer_has(client: TestClient) -> None:
    multipart(client, "a/b", b"1")
    multipart(client, "c", b"1")
    listed = client.get(f"{API}/data/o?fields=items(name,size),prefixes&delimiter=/").json()
    assert listed == {"items": [{"name": "c", "size": "1"}], "prefixes": ["a/"]}
    assert client.get(f"{API}/data/o/{quote('a/b', safe='')}?fields=name").json() == {"name": "a/b"}
    assert "field selection" in error_of(client.get(f"{API}/data?fields=name("), 400)
    assert client.get("/download/storage/v1/b/data/o/c?alt=media&fields=name").content == b"1"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("a", {"a": {"b": 1, "c": [{"d": 2, "e": 3}]}}),
        ("a/b", {"a": {"b": 1}}),
        ("a/c/d,f", {"a": {"c": [{"d": 2}]}, "f": 4}),
        ("a(b,c(e))", {"a": {"b": 1, "c": [{"e": 3}]}}),
        ("a(b),a", {"a": {"b": 1, "c": [{"d": 2, "e": 3}]}}),
        ("a,a(b)", {"a": {"b": 1, "c": [{"d": 2, "e": 3}]}}),
        ("*(b)", {"a": {"b": 1}, "f": 4}),
        (" f , none", {"f": 4}),
    ],
)
def test_selections(fields: str, expected: Any) -> None:
    assert select({"a": {"b": 1, "c": [{"d": 2, "e": 3}]}, "f": 4}, read_selection(fields)) == expected


@pytest.mark.parametrize(
    "fields", ["a(", "a)", "(a)", "a,,b", "a/", "/a", "a b", "a(b", "é", "a(" * 30 + "b" + ")" * 30, "a" * 2000]
)
def test_what_is_no_selection(fields: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_selection(fields)
    assert refused.value.field == "fields"


def test_addresses_that_are_not_served_say_so_in_googles_shape(client: TestClient) -> None:
    for method, path, word in (
        ("GET", "/storage/v1/projects/p/hmacKeys", "hmacKeys is not served by this platform: clients send a token"),
        ("GET", "/storage/v1/projects/p/serviceAccount", "serviceAccount"),
        ("GET", f"{API}/data/notificationConfigs", "notificationConfigs"),
        ("GET", f"{API}/data/iam", "iam"),
        ("POST", f"{API}/data/o/x/rewriteTo/b/data/o/y", "rewriteTo is not served by this platform: read the object"),
        ("POST", f"{API}/data/o/x/compose", "compose"),
        ("PATCH", f"{API}/data/o/x", "Changing an object where it lies"),
        ("PATCH", f"{API}/data/o/x%2Fy", "Changing an object where it lies"),
        ("DELETE", f"{API}/data", "'data'"),
        ("POST", "/storage/v1/nothing", "'nothing'"),
        ("POST", "/batch/compute/v1", "'v1'"),
        ("PUT", "/upload/storage/v1/b/data", "'data'"),
        ("POST", "/download/storage/v1/b/data/o/x", "Changing an object where it lies"),
    ):
        assert word in error_of(client.request(method, path), 501)
