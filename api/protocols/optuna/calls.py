"""Calls of Optuna's storage protocol, handled by Optuna's own gRPC servicer.

https://optuna.readthedocs.io/en/stable/reference/generated/optuna.storages.GrpcStorageProxy.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from optuna import logging as optuna_logging
from optuna.exceptions import StorageInternalError
from optuna.storages._grpc.auto_generated import api_pb2
from optuna.storages._grpc.servicer import OptunaStorageProxyService
from sqlalchemy.exc import SQLAlchemyError

from core.domain.errors import InvalidRequest, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from optuna.storages._cached_storage import _CachedStorage

_SERVICE: Final = api_pb2.DESCRIPTOR.services_by_name["StorageService"]
_READING: Final = "Get"
optuna_logging.set_verbosity(optuna_logging.WARNING)  # it logs each study to stderr, which is our log


class Refused(Exception):
    """A call that the storage refused. ``status``: name of a gRPC status code."""

    def __init__(self, status: str, details: str) -> None:
        super().__init__(details)
        self.status = status
        self.details = details


class _Context:
    """The part of gRPC's servicer context that the servicer uses."""

    def abort(self, code: Any, details: str) -> NoReturn:
        raise Refused(code.name, details)


def reads(method: str) -> bool:
    """Whether the call needs only a read token."""
    return method.startswith(_READING)


def perform(opened: Callable[[], _CachedStorage], method: str, body: bytes) -> bytes:
    """The answer to ``method`` of Optuna's StorageService. Both messages are protobuf. ``opened`` gives the storage.

    Raises:
        Refused: no such study or trial, a name that is taken, a trial that is over.
        NotFound: no such method. InvalidRequest: not its message. Unavailable: the database is away.
    """
    described = _SERVICE.methods_by_name.get(method)
    if described is None:
        raise NotFound(f"Optuna's storage has no method {method!r} here; this server speaks the protocol of Optuna 5.")
    request = GetMessageClass(described.input_type)()
    storage: _CachedStorage | None = None
    try:
        request.ParseFromString(body)
        storage = opened()
        answer = getattr(OptunaStorageProxyService(storage), method)(request, _Context())
    except (DecodeError, ValueError) as error:
        # For example text that is not JSON, or an unknown distribution; Optuna's client sends neither.
        raise InvalidRequest(
            f"The body is not a {described.input_type.name} that Optuna's storage takes: {error}"
        ) from error
    except (StorageInternalError, SQLAlchemyError) as error:
        raise Unavailable("The storage of Optuna's studies is away or busy; try again in a moment.") from error
    finally:
        if storage is not None:
            # The session is bound to this thread; the next call may run in another.
            storage._backend.remove_session()  # noqa: SLF001
    data: bytes = answer.SerializeToString()
    return data
