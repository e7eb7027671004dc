"""Cloud Storage's routes as Google's clients speak them; tests/frameworks has the real clients."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
import pytest
from starlette.testclient import TestClient

from api.app.factory import create_app
from core.settings import Settings
from core.wakeups import NoWakeup
from tests.unit.api_vertex.one_database import database_url  # noqa: F401 (a fixture)

API = "/storage/v1/b"
UPLOAD = "/upload/storage/v1/b"


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


@pytest.fixture
def data(settings: Settings, client: TestClient) -> Path:
    """The folder of the bucket `data`."""
    return settings.home / "data"


def multipart(
    client: TestClient, name: str, content: bytes, bucket: str = "data", query: str = "", **reply: Any
) -> Any:
    head = json.dumps({"name": name, **reply}).encode()
    body = b"--==1==\r\ncontent-type: application/json; charset=UTF-8\r\n\r\n" + head
    body += b"\r\n--==1==\r\ncontent-type: application/octet-stream\r\n\r\n" + content + b"\r\n--==1==--"
    return client.post(
        f"{UPLOAD}/{bucket}/o?uploadType=multipart{query}",
        content=body,
        headers={"content-type": 'multipart/related; boundary="==1=="'},
    )


def begin(client: TestClient, name: str, query: str = "", **reply: Any) -> str:
    answer = client.post(f"{UPLOAD}/data/o?uploadType=resumable{query}", json={"name": name, **reply})
    assert answer.status_code == 200, answer.text
    place: str = answer.headers["location"]
    assert place.startswith("http://testserver/upload/storage/v1/b/data/o?uploadType=resumable&upload_id=")
    return place


def error_of(answer: Any, status: int) -> str:
    body = answer.json()["error"]
    assert (answer.status_code, body["code"]) == (status, status), answer.text
    assert body["errors"][0]["reason"]
    return str(body["message"])


# --- buckets ---------------------------------------------------------------------------------------------------------


def test_a_volume_is_a_bucket_and_so_is_a_project(client: TestClient) -> None:
    assert client.get(f"{API}/data?fields=name").json()["name"] == "data"
    assert client.get(f"{API}/default").json()["name"] == "default"
    assert [one["name"] for one in client.get(API).json()["items"]] == ["data", "default", "output"]
    assert error_of(client.get(f"{API}/nowhere"), 404) == "The specified bucket does not exist."
    assert "Invalid bucket name" in error_of(client.get(f"{API}/No%20Bucket"), 400)
    assert "an administrator registers" in error_of(client.post(API, json={"name": "new"}), 403)


def test_a_wrong_token_is_refused_and_not_refreshed(app: Any) -> None:
    stranger = TestClient(app, headers={"Authorization": "Bearer tm_wrong"})
    assert "not known" in error_of(stranger.get(f"{API}/data"), 403)
    assert "token" in error_of(TestClient(app).get(f"{API}/data"), 403)


# --- upload and download ---------------------------------------------------------------------------------------------


def test_an_object_goes_up_and_comes_down_again(client: TestClient, data: Path) -> None:
    content = bytes(range(256)) * 1000 + b"\r\n--==1==\r\n-- no end"
    reply = multipart(client, "a b/c:1.bin", content, crc32c=crc32c(content)).json()
    assert (data / "a b" / "c:1.bin").read_bytes() == content
    assert reply["size"] == str(len(content))
    assert reply["crc32c"] == crc32c(content)
    assert reply["md5Hash"] == base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    name = quote("a b/c:1.bin", safe="")
    assert client.get(f"{API}/data/o/{name}").json() == reply
    whole = client.get(f"/download/storage/v1/b/data/o/{name}?alt=media")
    assert whole.content == content
    assert f"crc32c={crc32c(content)}" in whole.headers["x-goog-hash"]
    part = client.get(f"{API}/data/o/{name}?alt=media", headers={"range": "bytes=2-5"})
    assert (part.status_code, part.content) == (206, content[2:6])
    assert part.headers["content-range"] == f"bytes 2-5/{len(content)}"
    assert client.delete(f"{API}/data/o/{name}").status_code == 204
    assert error_of(client.get(f"{API}/data/o/{name}"), 404) == "No such object: data/a b/c:1.bin"
    assert error_of(client.delete(f"{API}/data/o/{name}"), 404)


@pytest.mark.parametrize("content", [b"", b"\r\n", b"x" * 70])
def test_small_contents_come_whole(client: TestClient, data: Path, content: bytes) -> None:
    assert multipart(client, "small", content).status_code == 200
    assert (data / "small").read_bytes() == content


def test_a_wrong_checksum_leaves_nothing(client: TestClient, data: Path) -> None:
    (data / "kept").write_bytes(b"old")
    wrong = crc32c(b"other")
    message = error_of(multipart(client, "kept", b"new", crc32c=wrong), 400)
    assert message == f'Provided CRC32C "{wrong}" doesn\'t match calculated CRC32C "{crc32c(b"new")}".'
    assert "MD5" in error_of(multipart(client, "kept", b"new", md5Hash=wrong), 400)
    assert (data / "kept").read_bytes() == b"old"
    assert sorted(path.name for path in data.iterdir()) == ["kept"]


def test_a_body_that_breaks_off_leaves_nothing(client: TestClient, data: Path) -> None:
    headers = {"content-type": "multipart/related; boundary=x"}
    body = b'--x\r\n\r\n{"name": "cut"}\r\n--x\r\n\r\nhalf of'
    answer = client.post(f"{UPLOAD}/data/o?uploadType=multipart", content=body, headers=headers)
    assert "broke off" in error_of(answer, 400)
    assert list(data.iterdir()) == []


def test_generations_guard_what_is_replaced(client: TestClient, data: Path) -> None:
    first = multipart(client, "x", b"1", query="&ifGenerationMatch=0").json()
    error_of(multipart(client, "x", b"2", query="&ifGenerationMatch=0"), 412)
    error_of(multipart(client, "x", b"2", query="&ifGenerationMatch=5"), 412)
    assert multipart(client, "x", b"22", query=f"&ifGenerationMatch={first['generation']}").status_code == 200
    error_of(client.delete(f"{API}/data/o/x?ifGenerationMatch={first['generation']}"), 412)
    assert (data / "x").read_bytes() == b"22"


def test_a_large_upload_comes_in_pieces(client: TestClient, data: Path) -> None:
    content = bytes(range(256)) * 4096
    place = begin(client, "deep/big", crc32c=crc32c(content))
    assert client.put(place, headers={"content-range": "bytes */*"}).status_code == 308
    half = 2**19
    answer = client.put(place, content=content[:half], headers={"content-range": f"bytes 0-{half - 1}/*"})
    assert (answer.status_code, answer.headers["range"]) == (308, f"bytes=0-{half - 1}")
    # A piece that would leave a hole is not taken; one that came already is taken once.
    answer = client.put(place, content=b"z", headers={"content-range": f"bytes {half + 9}-{half + 9}/*"})
    assert (answer.status_code, answer.headers["range"]) == (308, f"bytes=0-{half - 1}")
    assert not (data / "deep").exists()
    rest = content[half - 10 :]
    sent = {"content-range": f"bytes {half - 10}-{len(content) - 1}/{len(content)}"}
    reply = client.put(place, content=rest, headers=sent).json()
    assert (reply["size"], reply["crc32c"]) == (str(len(content)), crc32c(content))
    assert (data / "deep" / "big").read_bytes() == content
    # Whoever lost the answer asks again.
    assert client.put(place, headers={"content-range": f"bytes */{len(content)}"}).json()["size"] == reply["size"]
    assert list((data / ".uploads").iterdir()) == []
    assert [one["name"] for one in client.get(f"{API}/data/o").json()["items"]] == ["deep/big"]


def test_an_upload_without_ranges_is_whole(client: TestClient, data: Path) -> None:
    assert client.put(begin(client, "x"), content=b"all").json()["crc32c"] == crc32c(b"all")
    wrong = begin(client, "y", crc32c=crc32c(b"other"))
    assert "doesn't match" in error_of(client.put(wrong, content=b"all"), 400)
    given_up = begin(client, "z")
    assert client.delete(given_up).status_code == 499
    error_of(client.put(given_up, content=b"all"), 404)
    error_of(client.put(given_up[:-3] + "abc", content=b"all"), 404)
    error_of(client.put(begin(client, "w"), content=b"all", headers={"content-range": "bytes 5-2/9"}), 400)
    assert sorted(path.name for path in data.iterdir()) == [".uploads", "x"]


# --- names and links -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/x", "a//b", "../x", "a/../../x", ".", "a/./b", ".uploads/x", "a\0b"])
def test_no_name_leaves_the_bucket(client: TestClient, name: str) -> None:
    assert error_of(multipart(client, name, b"x"), 400)


def test_links_are_followed_inside_alone(client: TestClient, data: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (data / "in").write_text("x")
    (data / "out").symlink_to(tmp_path / "secret")
    (data / "up").symlink_to("..")
    (data / "same").symlink_to("in")
    assert client.get(f"{API}/data/o/same?alt=media").text == "x"
    for name in ("out", "up/token", "up%2Ftoken"):
        error_of(client.get(f"{API}/data/o/{name}?alt=media"), 404)
    error_of(multipart(client, "up/x", b"x"), 404)
    assert [one["name"] for one in client.get(f"{API}/data/o").json()["items"]] == ["in", "same"]


# --- lists -----------------------------------------------------------------------------------------------------------


def test_lists_are_in_the_order_of_names(client: TestClient, data: Path) -> None:
    names = ["a.txt", "a/1", "a/b/2", "a/b/3", "a0", "b/x", "c"]
    for name in names:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    (data / "empty").mkdir()

    def listed(**query: Any) -> tuple[list[str], list[str]]:
        found: tuple[list[str], list[str]] = [], []
        while True:
            page = client.get(f"{API}/data/o", params=query).json()
            found[0].extend(one["name"] for one in page.get("items", []))
            found[1].extend(page.get("prefixes", []))
            if "nextPageToken" not in page:
                return found
            query["pageToken"] = page["nextPageToken"]

    assert listed()[0] == names
    assert listed(maxResults=1)[0] == names
    assert listed(delimiter="/") == (["a.txt", "a0", "c"], ["a/", "b/"])
    assert listed(delimiter="/", maxResults=1) == (["a.txt", "a0", "c"], ["a/", "b/"])
    assert listed(prefix="a/") == (["a/1", "a/b/2", "a/b/3"], [])
    assert listed(prefix="a/", delimiter="/") == (["a/1"], ["a/b/"])
    assert listed(prefix="a/b") == (["a/b/2", "a/b/3"], [])
    assert listed(prefix="z") == ([], [])
    assert listed(startOffset="a/b/3", endOffset="b/x")[0] == ["a/b/3", "a0"]
    error_of(client.get(f"{API}/data/o?delimiter=x"), 400)
    error_of(client.get(f"{API}/data/o?matchGlob=*"), 501)
    error_of(client.get(f"{API}/data/o?pageToken=%FF"), 400)


# --- who may ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def ann(client: TestClient, as_user: Any) -> TestClient:
    """A member of the project `hers`, and not of `default`."""
    assert client.post("/api/v1/projects", json={"name": "hers"}).status_code == 201
    found: TestClient = as_user("ann", project="hers")
    return found


def test_the_shared_volume_shows_ones_own_projects_alone(
    client: TestClient, ann: TestClient, settings: Settings
) -> None:
    assert multipart(client, "secret", b"x", bucket="default").status_code == 200
    assert (settings.home / "output" / "default" / "secret").exists()
    assert multipart(ann, "mine", b"x", bucket="hers").status_code == 200
    assert multipart(ann, "hers/too", b"x", bucket="output").status_code == 200
    assert [one["name"] for one in ann.get(f"{API}/output/o").json()["items"]] == ["hers/mine", "hers/too"]
    assert ann.get(f"{API}/output/o?delimiter=/").json()["prefixes"] == ["hers/"]
    assert [one["name"] for one in ann.get(f"{API}/hers/o").json()["items"]] == ["mine", "too"]
    error_of(ann.get(f"{API}/default/o"), 404)
    error_of(ann.get(f"{API}/output/o/default%2Fsecret"), 404)
    assert "gs://output/hers/" in error_of(multipart(ann, "default/x", b"x", bucket="output"), 403)
    assert error_of(multipart(ann, "x", b"x", bucket="output"), 403)
    (settings.home / "output" / "hers" / "link").symlink_to("../default")
    error_of(ann.get(f"{API}/output/o/hers%2Flink%2Fsecret"), 404)


def test_registered_models_are_read_only(client: TestClient, settings: Settings) -> None:
    """Not even an administrator, to whom the rest of the shared volume is open; nor through a link that lies there."""
    output = settings.home / "output"
    version = output / ".models" / "default" / "version-1"
    version.mkdir(parents=True)
    (version / "model.pt").write_bytes(b"weights")
    place = ".models/default/version-1/model.pt"
    for name in (place, ".models/default/version-1/more", ".models/default/version-2/model.pt"):
        assert "which never change" in error_of(multipart(client, name, b"others", bucket="output"), 403)
    assert "which never change" in error_of(client.delete(f"{API}/output/o/{quote(place, safe='')}"), 403)
    (output / "default").mkdir(exist_ok=True)
    (output / "default" / "away").symlink_to("../.models/default/version-1")
    assert multipart(client, "default/away/model.pt", b"others", bucket="output").status_code >= 400
    assert client.delete(f"{API}/output/o/{quote('default/away/model.pt', safe='')}").status_code >= 400
    assert {path.name: path.read_bytes() for path in version.iterdir()} == {"model.pt": b"weights"}
    read = client.get(f"/download/storage/v1/b/output/o/{quote(place, safe='')}?alt=media")
    assert read.content == b"weights"
    assert multipart(client, "default/own", b"mine", bucket="output").status_code == 200
    assert (output / "default" / "own").read_bytes() == b"mine"


PACKAGE = "aiplatform-2026-11-21-00:06:21.039-aiplatform_custom_trainer_script-0.1.tar.gz"


def open_staging(settings: Settings, where: str, sessions: Any) -> Any:
    """The application with that setting."""
    return create_app(settings.model_copy(update={"vertex_open_staging": where}), sessions=sessions, wakeup=NoWakeup())


def test_nothing_is_staged_without_a_token_by_default(app: Any, data: Path) -> None:
    """Jobs of this machine share its loopback address."""
    here = TestClient(app, client=("127.0.0.1", 5))
    assert "needs a token" in error_of(multipart(here, PACKAGE, b"x"), 403)
    assert not (data / PACKAGE).exists()


@pytest.mark.parametrize(
    "header", ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "forwarded", "via", "x-real-ip", "origin"]
)
@pytest.mark.parametrize("where", ["loopback", "anywhere"])
def test_no_proxy_and_no_page_stages_without_a_token(
    settings: Settings, sessions: Any, data: Path, where: str, header: str
) -> None:
    led = TestClient(open_staging(settings, where, sessions), client=("127.0.0.1", 5), headers={header: "10.0.0.9"})
    error_of(multipart(led, PACKAGE, b"x"), 403)
    assert not (data / PACKAGE).exists()


def test_a_package_is_staged_without_a_token_from_this_machine_alone(
    settings: Settings, sessions: Any, data: Path
) -> None:
    name, app = PACKAGE, open_staging(settings, "loopback", sessions)
    here = TestClient(app, client=("127.0.0.1", 5))
    assert multipart(here, name, b"x").status_code == 200
    assert (data / name).read_bytes() == b"x"
    error_of(multipart(here, name, b"y"), 412)
    error_of(multipart(here, "anything", b"x"), 403)
    error_of(multipart(here, name, b"x", bucket="default"), 403)
    error_of(multipart(here, f"default/{name}", b"x", bucket="output"), 403)
    error_of(here.get(f"{API}/data/o/{quote(name)}"), 403)
    elsewhere = TestClient(app, client=("10.0.0.9", 5))
    error_of(multipart(elsewhere, name.replace("21.039", "22.039"), b"x"), 403)
    error_of(
        multipart(TestClient(open_staging(settings, "anywhere", sessions), client=("10.0.0.9", 5)), name, b"y"), 412
    )


# --- what does not match ---------------------------------------------------------------------------------------------


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def wrong_headers(content: bytes) -> list[dict[str, str]]:
    return [
        {"x-goog-hash": f"crc32c={crc32c(b'other')}"},
        {"x-goog-hash": f"crc32c={crc32c(content)},md5={md5(b'other')}"},
        {"content-md5": md5(b"other")},
        {"x-goog-hash": "crc32c=nonsense"},
        {"x-goog-hash": "sha256=AAAA"},
    ]


def test_checksums_may_come_in_two_lines(client: TestClient, data: Path) -> None:
    """As Cloud Storage itself answers them, and as its clients may send them."""

    def send(*reply: str) -> Any:
        headers = [("x-goog-hash", one) for one in reply]
        return client.post(f"{UPLOAD}/data/o?uploadType=media&name=two", content=b"x", headers=headers)

    right = f"crc32c={crc32c(b'x')}"
    assert "MD5" in error_of(send(right, f"md5={md5(b'other')}"), 400)
    assert "given twice" in error_of(send(right, f"crc32c={crc32c(b'other')}"), 400)
    assert not (data / "two").exists()
    assert send(right, f"md5={md5(b'x')}").status_code == 200


def test_wrong_checksums_in_headers_leave_an_older_object_as_it_is(client: TestClient, data: Path) -> None:
    (data / "kept").write_bytes(b"good")
    content = b"new content"
    right = {"x-goog-hash": f"crc32c={crc32c(content)},md5={md5(content)}", "content-md5": md5(content)}
    for name in ("kept", "fresh"):
        for headers in wrong_headers(content):
            error_of(
                client.post(f"{UPLOAD}/data/o?uploadType=media&name={name}", content=content, headers=headers), 400
            )
            error_of(client.put(begin(client, name), content=content, headers=headers), 400)
            pieces = begin(client, name)
            whole = len(content)
            assert (
                client.put(pieces, content=content[:5], headers={"content-range": f"bytes 0-4/{whole}"}).status_code
                == 308
            )
            last = {"content-range": f"bytes 5-{whole - 1}/{whole}", **headers}
            error_of(client.put(pieces, content=content[5:], headers=last), 400)
    assert (data / "kept").read_bytes() == b"good"
    assert not (data / "fresh").exists()
    assert client.post(f"{UPLOAD}/data/o?uploadType=media&name=kept", content=content, headers=right).status_code == 200
    assert client.put(begin(client, "fresh"), content=content, headers=right).status_code == 200
    assert (data / "kept").read_bytes() == (data / "fresh").read_bytes() == content


@pytest.mark.parametrize("reply", [{"crc32c": 5}, {"crc32c": "AAAA"}, {"md5Hash": ["x"]}, {"md5Hash": "short"}])
def test_a_checksum_that_is_none_is_refused(client: TestClient, data: Path, reply: dict[str, Any]) -> None:
    assert "base64" in error_of(multipart(client, "new", b"x", **reply), 400)
    assert not (data / "new").exists()


def test_a_piece_is_as_long_as_it_says_and_the_whole_has_one_length(client: TestClient, data: Path) -> None:
    def put(place: str, content: bytes, reply: str) -> Any:
        return client.put(place, content=content, headers={"content-range": f"bytes {reply}"})

    for content in (b"0123456789", b"012"):
        place = begin(client, "new")
        assert "announces 5 bytes" in error_of(put(place, content, "0-4/5"), 400)
        assert put(place, b"", "*/5").status_code == 308
        assert not (data / "new").exists()
        assert client.delete(place).status_code == 499
    place = begin(client, "new")
    assert put(place, b"012", "0-2/5").status_code == 308
    assert "earlier had 5" in error_of(put(place, b"3456", "3-6/7"), 400)
    assert "were received" in error_of(put(place, b"", "*/2"), 400)
    assert put(place, b"34", "3-4/5").status_code == 200
    assert (data / "new").read_bytes() == b"01234"
    assert list((data / ".uploads").iterdir()) == []
