"""Google's SDK in a job of Vertex AI's client: its settings, by the hook alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HOOKS = Path(__file__).parents[3] / "worker_images/runtime/trainmaster_runtime/hooks"
FILES = {
    "google/auth/__init__.py": (
        "from google.auth import exceptions\n\n\n"
        "def default():\n"
        "    import os\n"
        "    if 'GOOGLE_APPLICATION_CREDENTIALS' in os.environ:\n"
        "        from google.oauth2.credentials import Credentials\n"
        "        return Credentials('theirs'), 'p'\n"
        "    raise exceptions.DefaultCredentialsError\n"
    ),
    "google/auth/exceptions.py": (
        "class GoogleAuthError(Exception):\n    pass\n\n\nclass DefaultCredentialsError(GoogleAuthError):\n    pass\n"
    ),
    "google/oauth2/__init__.py": "",
    "google/oauth2/credentials.py": (
        "class Credentials:\n"
        "    def __init__(self, token):\n"
        "        self.token = token\n\n"
        "    def apply(self, headers, token=None):\n"
        "        headers['authorization'] = self.token\n"
    ),
    "google/cloud/storage/__init__.py": (
        "from google.cloud.storage.blob import Blob\nfrom google.cloud.storage.client import Client\n"
    ),
    "google/cloud/storage/client.py": (
        "import os\n\n\n"
        "class Client:\n"
        "    def __init__(self, project=None, credentials=None, _http=None, client_info=None, "
        "client_options=None, *, api_key=None):\n"
        "        if isinstance(client_options, dict):\n"
        "            client_options = client_options.get('api_endpoint')\n"
        "        else:\n"
        "            client_options = getattr(client_options, 'api_endpoint', None)\n"
        "        self.server = client_options or os.environ.get('STORAGE_EMULATOR_HOST') or "
        "os.environ.get('API_ENDPOINT_OVERRIDE')\n"
    ),
    "google/cloud/storage/blob.py": (
        "class Blob:\n"
        "    @classmethod\n"
        "    def from_uri(cls, uri, client=None):\n"
        "        return uri, client\n\n"
        "    @classmethod\n"
        "    def from_string(cls, uri, client=None):\n"
        "        return cls.from_uri(uri, client=client)\n"
    ),
    "gcsfs/__init__.py": "from gcsfs.core import GCSFileSystem\n",
    "gcsfs/core.py": (
        "class GCSFileSystem:\n"
        "    def __init__(self, url, credentials):\n"
        "        self._location, self.credentials = url, credentials\n\n"
        "    def _get_headers(self, headers):\n"
        "        out = dict(headers)\n"
        "        self.credentials.credentials.apply(out)\n"
        "        return out\n"
    ),
    "google/cloud/__init__.py": "",
    "google/cloud/aiplatform/__init__.py": "from google.cloud.aiplatform import initializer\n",
    "google/cloud/aiplatform/initializer.py": (
        "class Config:\n    _api_endpoint = _project = _location = _credentials = None\n\n\nglobal_config = Config()\n"
    ),
}
CODE = """
import sys
assert "google.auth" not in sys.modules
import google.auth
from google.cloud import aiplatform
config = aiplatform.initializer.global_config
print(config._api_endpoint, config._project, config._location, config._credentials and config._credentials.token)
try:
    print(google.auth.default()[0].token)
except google.auth.exceptions.DefaultCredentialsError:
    print("none")
"""

LEAKS = """
import google.auth
import gcsfs
from types import SimpleNamespace

def sent(action):
    headers = {}
    try:
        return (action(headers) or headers)["authorization"]
    except google.auth.exceptions.GoogleAuthError as refused:
        assert not headers
        return str(refused)

credentials = google.auth.default()[0]
for url in ("http://api:1/storage/v1/b", "https://api:1/x", "http://api:2/x", "http://api:1.evil.org/x",
            "http://api:1@evil.org/x",
            "https://storage.googleapis.com/storage/v1/b"):
    print(sent(lambda headers: credentials.before_request(None, "GET", url, headers)))
print(sent(credentials.apply))
for url in ("https://storage.googleapis.com", "http://api:1"):
    credentials = SimpleNamespace(credentials=google.auth.default()[0])
    print(sent(lambda _: gcsfs.GCSFileSystem(url, credentials)._get_headers({})))
"""


def run(tmp_path: Path, code: str = CODE, **env: str) -> list[str]:
    for name, text in FILES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "token").write_text("tma_x\n")
    reported = {
        "PYTHONPATH": f"{HOOKS}:{tmp_path / 'site'}",
        "TRAINMASTER_API_URL": "http://api:1",
        "TRAINMASTER_TOKEN_FILE": str(tmp_path / "token"),
        "CLOUD_ML_PROJECT_ID": "vision",
        "CLOUD_ML_REGION": "europe-west4",
        **env,
    }
    done = subprocess.run([sys.executable, "-c", code], env=reported, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_sdk_speaks_to_the_platform_as_the_attempt(tmp_path: Path) -> None:
    assert run(tmp_path, VERTEX_AI_SDK_SERVER="trainmaster") == [
        "http://api:1 vision europe-west4 tma_x",
        "tma_x",
    ]


def test_in_other_jobs_it_is_as_google_made_it(tmp_path: Path) -> None:
    assert run(tmp_path) == ["None None None None", "none"]
    assert run(tmp_path, VERTEX_AI_SDK_SERVER="https://elsewhere") == ["None None None None", "none"]


def test_the_attempts_token_is_sent_to_the_platform_alone(tmp_path: Path) -> None:
    here, *foreign, unnamed, google, gcsfs = run(tmp_path, LEAKS, VERTEX_AI_SDK_SERVER="trainmaster")
    assert (here, gcsfs) == ("Bearer tma_x", "Bearer tma_x")
    assert len(foreign) == 5
    for refused in (*foreign, unnamed, google):
        assert "no credentials for" in refused
        assert "tma_x" not in refused
        assert "GOOGLE_APPLICATION_CREDENTIALS" in refused
    assert "storage.googleapis.com" in foreign[-1]


def test_credentials_of_ones_own_stay_the_default_ones(tmp_path: Path) -> None:
    reported = run(tmp_path, VERTEX_AI_SDK_SERVER="trainmaster", GOOGLE_APPLICATION_CREDENTIALS="/key.json")
    assert reported == ["http://api:1 vision europe-west4 tma_x", "theirs"]


ADDRESSES = """
from google.cloud.storage import Blob
print(Blob.from_string("/data/output/model/" + "/model.joblib", client=1))
for uri in ("/data/output/x", "/data/outputs/x", "/data/output/../x", "gs://b/x"):
    print(Blob.from_uri(uri)[0])
"""


def test_paths_of_the_output_are_addresses_where_googles_samples_take_them_for_those(tmp_path: Path) -> None:
    env = {"TRAINMASTER_OUTPUT_DIR": "/data/output", "TRAINMASTER_OUTPUT_URI": "gs://data/runs/1"}
    reported = run(tmp_path, ADDRESSES, VERTEX_AI_SDK_SERVER="trainmaster", **env)
    assert reported[0] == "('gs://data/runs/1/model/model.joblib', 1)"
    assert reported[1:] == ["gs://data/runs/1/x", "/data/outputs/x", "/data/output/../x", "gs://b/x"]


CLIENTS = """
import os
from types import SimpleNamespace
import google.auth
from google.cloud.storage import Client

theirs = SimpleNamespace(token="ya29.x")
own = Client(credentials=SimpleNamespace(token="tm_x"))
print(Client().server, Client("p", google.auth.default()[0]).server, own.server)
print(Client("p", theirs).server, Client(credentials=theirs, client_options={"universe_domain": "u.example"}).server)
options = SimpleNamespace(api_endpoint=None)
print(Client(credentials=theirs, client_options=options).server, options.api_endpoint)
print(Client("p", theirs, None, None, {"api_endpoint": "http://own"}).server)
os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = "/key.json"  # by the program itself
print(Client().server)
os.environ["API_ENDPOINT_OVERRIDE"] = "http://mine"
print(Client().server)
try:
    Client(colour="red")
except TypeError as error:
    print("colour" in str(error))
"""


def test_a_client_of_storage_with_credentials_of_googles_speaks_to_google(tmp_path: Path) -> None:
    assert run(tmp_path, CLIENTS, VERTEX_AI_SDK_SERVER="trainmaster", API_ENDPOINT_OVERRIDE="http://api:1") == [
        "http://api:1 http://api:1 http://api:1",
        "https://storage.googleapis.com https://storage.u.example",
        "https://storage.googleapis.com None",
        "http://own",
        "https://storage.googleapis.com",
        "http://mine",
        "True",
    ]


OWN_OF_GCSFS = """
from types import SimpleNamespace
import gcsfs
import google.auth
from google.oauth2.credentials import Credentials

for url, token in (("http://api:1", "ya29.x"), ("http://api:1", "tm_x"), ("https://storage.googleapis.com", "ya29.x")):
    try:
        credentials = SimpleNamespace(credentials=Credentials(token))
        print(gcsfs.GCSFileSystem(url, credentials)._get_headers({})["authorization"])
    except google.auth.exceptions.GoogleAuthError as refused:
        print(refused)
"""


def test_gcsfs_sends_credentials_of_googles_to_no_other_server(tmp_path: Path) -> None:
    refused, *sent = run(tmp_path, OWN_OF_GCSFS, VERTEX_AI_SDK_SERVER="trainmaster")
    assert "endpoint_url='https://storage.googleapis.com'" in refused
    assert sent == ["tm_x", "ya29.x"]
