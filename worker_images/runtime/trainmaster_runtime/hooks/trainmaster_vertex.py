# Read by whatever Python the user's code runs on: no annotations.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ARG002, INP001, SLF001
"""Points Google's SDK for Vertex AI at the platform that runs this job, with the attempt's credentials.

The SDK has no variable for its server. So when it is imported, its settings get other defaults; what the program says
itself, as in aiplatform.init(api_endpoint=...), still wins. Nothing is imported that the program does not import. Where
GOOGLE_APPLICATION_CREDENTIALS names credentials of the program's own, those stay the default ones of all other clients
of Google's. Else the attempt's token is the default, which is sent to this platform alone: a client that would send it
elsewhere gets an error instead. And a client of Cloud Storage that is given other credentials speaks to Google, though
the job's variables point such clients here.
"""

import copy
import functools
import importlib
import inspect
import os
from urllib.parse import urlsplit

from trainmaster_imports import after_import


def watch():
    """Wait for the imports of the SDK."""
    for name, change in _AFTER.items():
        after_import(name, change)


def _settings_of_the_sdk(module):
    config = module.global_config
    config._api_endpoint = os.environ["TRAINMASTER_API_URL"]
    config._api_transport = "rest"
    config._credentials = _credentials()
    # It would look for them at Google's for a minute before it took the environment's.
    config._project = os.environ.get("GOOGLE_CLOUD_PROJECT") or os.environ.get("CLOUD_ML_PROJECT_ID")
    config._location = os.environ.get("GOOGLE_CLOUD_REGION") or os.environ.get("CLOUD_ML_REGION")


def _default_credentials(module):
    default = module.default

    def own_or_platform_credentials(*args, **kwargs):
        # Never credentials of the machine, such as the node's own: a job has an identity of its own.
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            return default(*args, **kwargs)
        return _credentials(), os.environ.get("CLOUD_ML_PROJECT_ID")

    module.default = own_or_platform_credentials


def _addresses_of(name):
    """AIP_MODEL_DIR and its like are paths here, which TensorFlow and open() write to. Where Google's samples take them
    for the addresses that they are there, as in Blob.from_string(os.environ["AIP_MODEL_DIR"] + "/model.joblib"), they
    are those.
    """

    def after(module):
        kind = getattr(module, name)
        for method in ("from_uri", "from_string"):
            original = getattr(kind, method, None)
            if original is not None:
                setattr(kind, method, classmethod(_with_address(original.__func__)))

    return after


def _with_address(original):
    def with_address(cls, uri, *args, **kwargs):
        return original(cls, _address(uri), *args, **kwargs)

    return with_address


def _address(uri):
    folder, address = (os.environ.get("TRAINMASTER_OUTPUT_" + name) for name in ("DIR", "URI"))
    if folder and address and isinstance(uri, str):
        path = os.path.normpath(uri)
        if path == folder or path.startswith(folder.rstrip("/") + "/"):
            below = path[len(folder.rstrip("/")) :].lstrip("/")
            return address.rstrip("/") + "/" + below
    return uri


def _clients_of_storage(module):
    """A client with credentials of Google's, or with none, is for Google's server, and its token goes only there.

    The variable that points clients here applies to all of them, so such a client gets Google's server, unless the
    program names one itself.
    """
    original = module.Client.__init__

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        try:
            bound = inspect.signature(original).bind_partial(self, *args, **kwargs)
        except TypeError:
            original(self, *args, **kwargs)  # says what is wrong
            return
        if _is_led_here() and _is_of_google(bound.arguments.get("credentials")):
            bound.arguments["client_options"] = _at_google(bound.arguments.get("client_options"))
        original(*bound.args, **bound.kwargs)

    module.Client.__init__ = init


def _is_led_here():
    """Whether it is the platform that points Cloud Storage's clients here, and not the program."""
    return "STORAGE_EMULATOR_HOST" not in os.environ and _is_here(os.environ.get("API_ENDPOINT_OVERRIDE", ""))


def _is_of_google(credentials):
    if credentials is None:  # the default ones, where the program has named a file of its own
        return bool(os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"))
    token = getattr(credentials, "token", None)
    return not hasattr(credentials, "trust") and not (isinstance(token, str) and token.startswith(("tm_", "tma_")))


def _at_google(options):
    """The same options with Google's server, where they name none."""
    if isinstance(options, dict) or options is None:
        bound = dict(options or {})
        if not bound.get("api_endpoint"):
            bound["api_endpoint"] = _GOOGLE.format(bound.get("universe_domain") or "googleapis.com")
        return bound
    if not options.api_endpoint:
        options = copy.copy(options)
        options.api_endpoint = _GOOGLE.format(getattr(options, "universe_domain", None) or "googleapis.com")
    return options


def _headers_of_gcsfs(module):
    """It asks its credentials for a header without saying what for, but knows its one server."""
    original = module.GCSFileSystem._get_headers

    def _get_headers(self, headers):
        own = getattr(self.credentials, "credentials", None)
        if own is not None and hasattr(own, "trust"):
            own.trust(self._location)
        elif own is not None and _is_of_google(own) and _is_here(self._location):
            raise _refusal()(_ELSEWHERE)
        return original(self, headers)

    module.GCSFileSystem._get_headers = _get_headers


def _credentials():
    with open(os.environ["TRAINMASTER_TOKEN_FILE"]) as stream:
        token = stream.read().strip()
    return _class()(token=token)


def _class():
    """The class of credentials for this platform alone. Made lazily: the program may never import its base class."""
    if not _MADE:
        base = importlib.import_module("google.oauth2.credentials").Credentials
        refusal = _refusal()

        class AttemptCredentials(base):
            _is_trusted = False

            def before_request(self, request, method, url, headers):
                if not _is_here(url):
                    raise refusal(_FOREIGN.format(urlsplit(url).netloc or url))
                headers["authorization"] = "Bearer " + self.token

            def trust(self, url):
                """For a client that has no other server."""
                if not _is_here(url):
                    raise refusal(_FOREIGN.format(urlsplit(url).netloc or url))
                self._is_trusted = True

            def apply(self, headers, token=None):
                if not self._is_trusted:
                    raise refusal(_FOREIGN.format("a server that the client does not name"))
                headers["authorization"] = "Bearer " + (token or self.token)

        _MADE.append(AttemptCredentials)
    return _MADE[0]


def _refusal():
    return importlib.import_module("google.auth.exceptions").GoogleAuthError


def _is_here(url):
    try:
        platform, target = urlsplit(os.environ["TRAINMASTER_API_URL"]), urlsplit(url)
        return _place(platform) == _place(target)
    except (TypeError, ValueError):
        return False


def _place(parts):
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


_MADE = []
_GOOGLE = "https://storage.{}"
_ELSEWHERE = (
    "These credentials are not for the platform that runs this job, and GCSFileSystem was about to send them there. "
    "For Google's "
    "Cloud Storage give it endpoint_url='https://storage.googleapis.com'; for the platform's buckets give it no token."
)
_FOREIGN = (
    "This job has no credentials for {}: its own token is for the platform that runs it. For Google's services give "
    "the job "
    "credentials of its own, in a file that GOOGLE_APPLICATION_CREDENTIALS names."
)
_AFTER = {
    "gcsfs.core": _headers_of_gcsfs,
    "google.auth": _default_credentials,
    "google.cloud.aiplatform.initializer": _settings_of_the_sdk,
    "google.cloud.storage.client": _clients_of_storage,
    "google.cloud.storage.blob": _addresses_of("Blob"),
    "google.cloud.storage.bucket": _addresses_of("Bucket"),
}
