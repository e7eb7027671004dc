"""Refuse models that the platform's server cannot serve, judged by file names, before a replica is started.

Rules and messages are those of ``trainmaster_serving.models`` and its readers, which are installed in images alone; a
test keeps the two consistent. What only reading the model shows, such as unknown types in a skops file, is left to the
server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

# Suffixes of each framework's files.
_ENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": (".pt2", ".pt", ".pth", ".ts"),
    "sklearn": (".skops", ".joblib", ".pkl", ".pickle"),
    "xgboost": (".ubj", ".bst", ".xgb"),
}
SAVED_MODEL: Final = "saved_model.pb"
_FACTORY: Final = "model.py"  # builds the module for a state_dict


@dataclass(frozen=True, slots=True)
class Refusal:
    """``field``: the request's field to correct."""

    field: str
    sentence: str


def refusal(
    label: str,
    names: Collection[str],
    *,
    file: str,
    framework: str,
    trusts_code: bool,
    is_torchscript: Callable[[str], bool | None],
) -> Refusal | None:
    """``None``: the file names show no problem.

    Args:
        label: name of the model's folder in messages.
        names: of everything in the folder.
        file: the chosen file; may be empty.
        is_torchscript: whether this file of the folder contains its module; ``None``: unknown.
    """
    if SAVED_MODEL in names and (file == SAVED_MODEL or (not file and framework in ("auto", "tensorflow"))):
        return None
    if file:
        found = [file]
        kind = framework if framework != "auto" else _kind_of(file)
        if not kind:
            return Refusal("framework", f"The name of {file} does not say what it is; name its framework.")
    else:
        found = sorted(name for name in names if _kind_of(name) and framework in ("auto", _kind_of(name)))
        if len(found) > 1:
            found = [name for name in found if name.rpartition(".")[0] == "model"] or found
        if not found:
            return Refusal("model", _nothing(label, names, framework))
        if len(found) > 1:
            return Refusal("model", f"{label} holds several models ({', '.join(found[:10])}); name the one to serve.")
        kind = _kind_of(found[0])
    path = f"{label}/{found[0]}"
    if kind == "sklearn" and not path.endswith(".skops") and not trusts_code:
        return Refusal(
            "trust_code",
            f"{path} is a pickle, and reading it runs whatever its author wrote into it: deploy with trust_code "
            "(`--trust-code`) if you trust them, or save the model with skops (`skops.io.dump(model, 'model.skops')`).",
        )
    return _of_torch(path, found[0], names, trusts_code, is_torchscript) if kind == "torch" else None


def _of_torch(
    path: str, name: str, names: Collection[str], trusts_code: bool, is_torchscript: Callable[[str], bool | None]
) -> Refusal | None:
    if name.endswith(".pt2"):
        return None if trusts_code else Refusal(
            "trust_code",
            f"{path} is a program of torch.export, which may run code of its author when it is read; deploy with "
            "trust_code (`--trust-code`) if you trust its author, or save the model with torch.jit.save.",
        )  # fmt: skip
    if is_torchscript(name) is not False:
        return None
    if _FACTORY not in names:
        return Refusal(
            "model",
            f"{path} has only weights, without the module: save the model with torch.jit.save or torch.export.save, or "
            f"put a {_FACTORY} with make_model() next to it.",
        )
    return None if trusts_code else Refusal(
        "trust_code",
        f"{path} has only weights, so {_FACTORY} next to it would have to be run; deploy with trust_code "
        "(`--trust-code`) if you trust its author.",
    )  # fmt: skip


def _nothing(label: str, names: Collection[str], framework: str) -> str:
    of = "" if framework == "auto" else f" of {framework}"
    has = ", ".join(sorted(names)[:10]) or "nothing"
    known = ", ".join([SAVED_MODEL, *(f"*{end}" for ends in _ENDS.values() for end in ends)])
    return f"{label} holds no model{of}: it has {has}. Known are {known}."


def _kind_of(name: str) -> str:
    return next((kind for kind, ends in _ENDS.items() if name.endswith(ends)), "")
