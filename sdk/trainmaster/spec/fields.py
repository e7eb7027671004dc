"""Types of a spec's fields: their parsers and error messages.

Every parser raises :class:`FieldError` with a sentence that continues the field's path: "must be a whole number".
``None`` never gets here: an empty field counts as not written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, get_args

from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import TypedDict

from trainmaster.spec.errors import FieldError, suggest
from trainmaster.spec.quantity import as_text, format_bytes, format_cpu, parse_bytes, parse_cpu_milli, parse_duration_s

# No machine has more.
MAX_GPUS: Final = 64
# Tolerance for the rounding of decimal fractions in binary, such as 0.3.
_ROUNDING: Final = 1e-9


def read_gpus(value: Any) -> int | float:
    """A number of whole GPUs, or a fraction of a GPU in thousandths. Raises :class:`FieldError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{0,9}(\.[0-9]{1,9})?\s*", value) and value.strip():
            raise FieldError("must be a number, not text", f"write {float(value):g} without quotes")
        raise FieldError(f"must be a whole number, or a fraction of a GPU such as 0.5, not {kind_of(value)}")
    if value < 0:
        raise FieldError(f"must be at least 0, not {as_text(value)}")
    if value > MAX_GPUS:
        raise FieldError(f"must be at most {MAX_GPUS}, not {as_text(value)}")
    if value == int(value):
        return int(value)
    if value > 1:
        raise FieldError(
            f"{as_text(value)} is neither a whole number nor a fraction of one GPU",
            f"write {int(value)} or {int(value) + 1}, or a fraction such as 0.5",
        )
    milli = round(value * 1000)
    if milli not in range(1, 1000) or abs(value * 1000 - milli) > _ROUNDING:
        raise FieldError(
            f"{as_text(value)} is not a multiple of 0.001 GPU", f"write {min(999, max(1, milli)) / 1000:g}"
        )
    return milli / 1000


Gpus = Annotated[
    int | float,
    BeforeValidator(
        read_gpus,
        json_schema_input_type=Annotated[int, Field(ge=0, le=MAX_GPUS)] | Annotated[float, Field(ge=0.001, le=0.999)],
    ),
]

# RFC 1123 label: it becomes part of host names and Kubernetes object names.
NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
# Names from which no host name and no path is derived; also valid as the value of a label.
DISPLAY_NAME_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
ROLE_PATTERN: Final = r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$"
ENV_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
CODE_PATTERN: Final = r"^sha256:[0-9a-f]{64}$"
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_LABEL_KEY: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
# Linux's limit for one argument or "NAME=value" (MAX_ARG_STRLEN: 32 pages, including the closing zero byte).
MAX_ARGUMENT_BYTES: Final = 131_071
# Reserved for the platform: a user's variable of such a name would be mistaken for the platform's.
RESERVED_ENV_PREFIX: Final = "TRAINMASTER_"
_RESERVED_FOLDERS: Final = ("/data/data", "/data/output", "/data/.trainmaster", "/dev", "/proc", "/sys")
# No mount may cover them.
_SYSTEM_FOLDERS: Final = frozenset(
    f"/{name}"
    for name in ("", "bin", "boot", "data", "etc", "lib", "lib32", "lib64", "run", "sbin", "tmp", "usr", "var")
)


# Limit of a job's patterns, and of the names in a pattern: each log line is matched against all patterns.
MAX_PATTERNS: Final = 20
_PATTERN_LENGTH: Final = 300
_PATTERN_NAME: Final = re.compile(r"\{([A-Za-z_][\w./-]{0,99})\}")
_ADJACENT_NAMES: Final = re.compile(r"\{[A-Za-z_][\w./-]{0,99}\}\{[A-Za-z_][\w./-]{0,99}\}")


def kind_of(value: Any) -> str:
    """The type of ``value`` as a user would call it."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
    return "something else"


def quoted(value: Any, limit: int = 60) -> str:
    """``value`` as the user wrote it, in quotes, truncated to ``limit`` characters."""
    text = (
        value if isinstance(value, str) else str(as_text(value)) if isinstance(value, int | float) else kind_of(value)
    )
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


class ReplicaRange(TypedDict):
    """Number of replicas of an elastic role: between ``min`` and ``max``, depending on free capacity."""

    min: Annotated[
        int, Field(ge=1, description="Minimum to keep running; below it the gang restarts from a checkpoint.")
    ]
    max: Annotated[int, Field(ge=1, description="Maximum, reached when there is capacity.")]


_RANGE_HINT: Final = "write it like 2, or {min: 2, max: 4}"

# --- numbers and switches


def _integer(value: Any) -> int:
    if isinstance(value, float) and not isinstance(value, bool) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
            raise FieldError("must be a whole number, not text", f"write {int(value)} without quotes")
        raise FieldError(f"must be a whole number, not {quoted(value) if isinstance(value, float) else kind_of(value)}")
    return int(value)


def _count(value: Any) -> int:
    """A count; true means 1, false 0."""
    return int(value) if isinstance(value, bool) else _integer(value)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    # YAML 1.1's other booleans are text in YAML 1.2; their meaning is unambiguous here.
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in ("true", "yes", "on"):
        return True
    if word in ("false", "no", "off"):
        return False
    raise FieldError("must be true or false")


def _cpu(value: Any) -> str:
    return format_cpu(parse_cpu_milli(value))


def _bytes(value: Any) -> str:
    return format_bytes(parse_bytes(value))


# --- text


def _line(value: Any) -> str:
    if not isinstance(value, str):
        raise FieldError(
            f"must be text, not {kind_of(value)}", f"write {_double_quoted(value)}" if _is_number(value) else None
        )
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _double_quoted(value: Any) -> str:
    return f'"{str(as_text(value))[:60]}"'


def _text(value: Any) -> str:
    """Text of an environment variable or an argument; a number or a bool as it was written."""
    text = as_text(value)
    if text is None:
        raise FieldError("is empty", 'write "" for an empty text')
    if not isinstance(text, str):
        raise FieldError(f"must be text, not {kind_of(value)}")
    if len(text.encode("utf-8", "replace")) > MAX_ARGUMENT_BYTES:
        raise FieldError("is longer than 128 KiB, the limit of Linux", "put it into a file")
    return str(text)


def _pattern(pattern: str, sentence: str) -> AfterValidator:
    compiled = re.compile(pattern.removeprefix("^").removesuffix("$"))

    def check(value: str) -> str:
        if compiled.fullmatch(value):
            return value
        raise FieldError(f"{quoted(value)} is not {sentence}")

    return AfterValidator(check)


def _name_hint(value: str) -> str:
    """``value``; otherwise an error that suggests the nearest valid name."""
    if re.fullmatch(NAME_PATTERN[1:-1], value):
        return value
    suggestion = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")[:63].strip("-")
    raise FieldError(
        f"{quoted(value)} is not a name: at most 63 lower-case letters, digits and '-', no '-' at the ends",
        f"for example {suggestion}" if suggestion else None,
    )


def _display_name_hint(value: str) -> str:
    """``value``; otherwise an error that suggests the nearest valid name."""
    if re.fullmatch(DISPLAY_NAME_PATTERN[1:-1], value):
        return value
    suggestion = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("._-")[:63].strip("._-")
    raise FieldError(
        f"{quoted(value)} is not a name: at most 63 letters (a to z), digits, '.', '_' and '-', with a letter or digit "
        "at both ends",
        f"for example {suggestion}" if suggestion else None,
    )


def _label_key(value: str) -> str:
    if _LABEL_KEY.fullmatch(value):
        return value
    raise FieldError(
        "is not a label key: at most 63 letters, digits, '-', '_', '.', with an optional prefix such as team.example/"
    )


def _label_value(value: Any) -> str:
    text = _text(value)
    if _LABEL_VALUE.fullmatch(text):
        return text
    raise FieldError(f"{quoted(text)} is not a label value: at most 63 letters, digits, '-', '_', '.'")


def _code(value: str) -> str:
    if re.fullmatch(CODE_PATTERN[1:-1], value):
        return value
    raise FieldError(
        f"{quoted(value)} is not the digest of an uploaded archive, sha256: and 64 hexadecimal digits",
        "omit it and name the folder with `--code`: the command packs and uploads the folder, and fills in the digest",
    )


def _image(value: Any) -> str:
    text = _line(value).strip()
    if not text or len(text) > 1024 or re.search(r"\s", text):
        raise FieldError(
            f"{quoted(text)} is not an image name", "write it like python:3.11 or registry.example/team/train:7"
        )
    return text


# --- commands


def _command(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise FieldError("is empty", "write what to run, such as python train.py")
        return _text(value)
    if isinstance(value, list | tuple):
        words = _words(value)
        if not words or not words[0].strip():
            raise FieldError("is empty", "write what to run, such as [python, train.py]")
        return words
    raise FieldError(f"must be text or a list of words, not {kind_of(value)}", "write it like python train.py")


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise FieldError("must be a list, not text", f"write it like [{', '.join(value.split()[:6]) or '--epochs, 3'}]")
    if not isinstance(value, list | tuple):
        raise FieldError(f"must be a list of words, not {kind_of(value)}", "write it like [--epochs, 3]")
    words = []
    for position, item in enumerate(value, start=1):
        try:
            words.append(_text(item))
        except FieldError as error:
            raise FieldError(f"word {position} {error.message}", error.hint) from None
    return tuple(words)


def _models(value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item.strip() for item in items):
        raise FieldError("must be a GPU model or a list of them, such as A100 or [H100, A100]")

    return tuple(dict.fromkeys(item.strip()[:100] for item in items))


def _patterns(value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise FieldError("must be a pattern or a list of them", 'write it like ["epoch {epoch} loss {loss}"]')
    if len(items) > MAX_PATTERNS:
        raise FieldError(f"has {len(items)} patterns; the maximum is {MAX_PATTERNS}")
    for item in items:
        names = _PATTERN_NAME.findall(item)
        if not names or len(names) > MAX_PATTERNS or len(item) > _PATTERN_LENGTH or not item.isprintable():
            raise FieldError(
                f"{quoted(item)} is not a pattern: a pattern is one line of at most {_PATTERN_LENGTH} characters with "
                f"1 to {MAX_PATTERNS} names in braces in place of numbers",
                "write it like loss {loss} at step {step}",
            )
        if adjacent := _ADJACENT_NAMES.search(item):
            raise FieldError(
                f"{quoted(item)} has {adjacent[0]} without text in between: where the first number ends is ambiguous",
                "write the separator between them, like {epoch}/{epochs}",
            )
    return tuple(items)


# --- paths


def _volume_path(value: Any) -> str:
    volume, _, path = _line(value).strip().partition("/")
    if "://" in f"{volume}/{path}":
        raise FieldError(f"{quoted(value)} is a URI", "register the storage as a volume and write volume/path")
    if not re.fullmatch(NAME_PATTERN[1:-1], volume):
        raise FieldError(
            f"{quoted(value)} does not begin with a volume name", "write volume/path, like datasets/digits"
        )
    inner = _folder(path)
    return f"{volume}/{inner}" if inner else volume


def _folder(value: Any) -> str:
    """A path inside a volume, without redundant slashes."""
    parts = [part for part in _line(value).split("/") if part not in ("", ".")]
    if ".." in parts:
        raise FieldError(f"{quoted(value)} must not leave the volume", "remove the '..'")
    text = "/".join(parts)
    if len(text.encode("utf-8", "replace")) > 4000:
        raise FieldError("is longer than 4000 bytes, the limit of file systems")
    return text


def _mount_point(value: Any) -> str:
    text = _line(value)
    parts = [part for part in text.split("/") if part not in ("", ".")]
    path = "/" + "/".join(parts)
    if not text.startswith("/") or ".." in parts or len(path) > 4000:
        raise FieldError(f"{quoted(text)} is not an absolute path", "write it like /mnt/set")
    for reserved in _RESERVED_FOLDERS:
        if path == reserved or path.startswith(f"{reserved}/"):
            raise FieldError(f"{quoted(text)} is reserved for the platform", "write a folder like /mnt/set")
    if path in _SYSTEM_FOLDERS:
        raise FieldError(f"{quoted(text)} would hide the image's {path}", "write a folder like /mnt/set")
    return path


# --- environments

MAX_REQUIREMENTS: Final = 1000
_REQUIREMENT_CHARS: Final = 2000
# A name with extras, then a version, a marker, a URL, or options such as --hash: the installer reads the rest.
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\s*(\[[^\]]*\])?\s*($|[<>=!~;@(].*|\s--.*)")
_WHEEL_URL: Final = re.compile(r"(https?|file)://\S+|git\+\S+")
_INDEX_OPTIONS: Final = (
    *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--no-binary", "--only-binary"),
    *("--pre", "--require-hashes"),
)
_FILE_OPTIONS: Final = ("-r", "--requirement", "-c", "--constraint")
_EDITABLE_OPTIONS: Final = ("-e", "--editable")


def requirement_lines(text: str) -> list[str]:
    """Requirements in the text of a requirements file: without comments, continued lines joined."""
    joined = re.sub(r"\s*\\\r?\n\s*", " ", text)
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _requirements(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str) and not (
        isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    ):
        raise FieldError(
            "must be the text of a requirements file, or a list of its lines", "write it like [einops, numpy>=2]"
        )
    if isinstance(value, str) and re.fullmatch(r"\s*\S+\.(txt|in|lock)\s*", value):
        raise FieldError(
            f"{quoted(value)} is a file's name; the platform needs its lines",
            f"name the file with `--requirements {value.strip()}`, or write the lines here",
        )
    lines = requirement_lines(value if isinstance(value, str) else "\n".join(value))
    if len(lines) > MAX_REQUIREMENTS:
        raise FieldError(f"has {len(lines)} lines; the maximum is {MAX_REQUIREMENTS}", "build an image with them")
    for line in lines:
        _check_requirement(line)
    return tuple(lines)


def _check_requirement(line: str) -> None:
    option = re.split(r"[\s=]", line, maxsplit=1)[0]
    if option.startswith(_FILE_OPTIONS) and option[:1] == "-" and option not in _INDEX_OPTIONS:
        raise FieldError(
            f"{quoted(line)} names another file, which the platform does not get",
            "write that file's lines here; `--requirements FILE` reads the files that `-r` names",
        )
    if option in _EDITABLE_OPTIONS or line.startswith((".", "/", "~", "file:.")):
        raise FieldError(
            f"{quoted(line)} is a folder or file of one machine",
            "put the package into the job's code and set env.PYTHONPATH to its folder, or name a wheel's URL",
        )
    if option.startswith("-"):
        if option not in _INDEX_OPTIONS:
            raise FieldError(
                f"{quoted(line)} is no option of requirements here", f"use one of {', '.join(_INDEX_OPTIONS)}"
            )
        return
    if len(line) > _REQUIREMENT_CHARS or not (_REQUIREMENT.fullmatch(line) or _WHEEL_URL.fullmatch(line)):
        raise FieldError(f"{quoted(line)} is no requirement", "write it like numpy, numpy>=2 or torch==2.13.0")


def _interpreter_path(value: Any) -> str:
    text = _line(value).strip()
    if not text.startswith("/") or ".." in text.split("/") or len(text) > 4000 or not text.isprintable():
        raise FieldError(
            f"{quoted(text)} is not an absolute path",
            "write the whole path, as in /opt/venv; the options of `trainmaster run` complete it",
        )
    return text.rstrip("/") or "/"


def _conda_name(value: Any) -> str:
    text = _line(value).strip()
    if not re.fullmatch(r"[\w.+-]{1,100}", text):
        raise FieldError(
            f"{quoted(text)} is no name of a conda environment", "`conda env list` shows the names; for a path use venv"
        )
    return text


def read_replica_range(value: Any) -> tuple[int, int]:
    """``{min: 2, max: 4}`` as (2, 4); raises :class:`FieldError`."""
    if not isinstance(value, Mapping) or set(value) != {"min", "max"}:
        raise FieldError(f"must be a whole number or a range, not {kind_of(value)}", _RANGE_HINT)
    least, most = (_integer(value[key]) for key in ("min", "max"))
    if not 1 <= least <= most:
        raise FieldError(f"min is {least} and max is {most}", "min must be at least 1, and at most max")
    return least, most


def replica_range(limit: int) -> BeforeValidator:
    """Parser of a count up to ``limit``, or of a range of counts, which becomes (min, max)."""

    def read(value: Any) -> Any:
        if isinstance(value, Mapping):
            least, most = read_replica_range(value)
            if most > limit:
                raise FieldError(f"max must be at most {limit}, not {most}")
            return least, most
        number = _integer(value)
        if not 0 <= number <= limit:
            raise FieldError(f"must be at {'least 0' if number < 0 else f'most {limit}'}, not {number}")
        return number

    return BeforeValidator(read, json_schema_input_type=Annotated[int, Field(ge=0, le=limit)] | ReplicaRange)


def count(limit: int) -> BeforeValidator:
    """Parser of a count up to ``limit``; true means 1, false 0."""
    return BeforeValidator(_count, json_schema_input_type=Annotated[int, Field(ge=0, le=limit)] | bool)


def choice(kind: type[StrEnum]) -> BeforeValidator:
    """Parser of an enum's values."""
    words = [member.value for member in kind]

    def read(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        meant = suggest(value, words) if isinstance(value, str) else None
        raise FieldError(f"must be one of {', '.join(words)}", f"did you mean {meant}?" if meant else None)

    return BeforeValidator(read, json_schema_input_type=kind)


integer = BeforeValidator(_integer)
Integer = Annotated[int, integer]
Flag = Annotated[bool, BeforeValidator(_flag)]
CpuQuantity = Annotated[str, BeforeValidator(_cpu, json_schema_input_type=str | int | float)]
ByteQuantity = Annotated[str, BeforeValidator(_bytes, json_schema_input_type=str | int)]
Seconds = Annotated[float, BeforeValidator(parse_duration_s, json_schema_input_type=str | int | float)]


def is_duration(annotation: Any, metadata: Sequence[Any] = ()) -> bool:
    """Whether a field of this type is :data:`Seconds`, optional or not."""
    own = [*metadata, *getattr(annotation, "__metadata__", ())]
    if any(isinstance(validator, BeforeValidator) and validator.func is parse_duration_s for validator in own):
        return True
    return any(is_duration(validator) for validator in get_args(annotation) if validator is not annotation)


Text = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | int | float | bool)]
Line = Annotated[str, BeforeValidator(_line)]
Image = Annotated[str, BeforeValidator(_image)]
Command = Annotated[
    tuple[str, ...] | str,
    BeforeValidator(_command, json_schema_input_type=str | list[str | int | float | bool]),
]
Words = Annotated[tuple[str, ...], BeforeValidator(_words, json_schema_input_type=list[str | int | float | bool])]
GpuModels = Annotated[tuple[str, ...], BeforeValidator(_models, json_schema_input_type=str | list[str])]
LinePatterns = Annotated[tuple[str, ...], BeforeValidator(_patterns, json_schema_input_type=str | list[str])]
VolumePath = Annotated[str, BeforeValidator(_volume_path)]
Folder = Annotated[str, BeforeValidator(_folder)]
MountPoint = Annotated[str, BeforeValidator(_mount_point)]
InterpreterPath = Annotated[str, BeforeValidator(_interpreter_path)]
CondaName = Annotated[str, BeforeValidator(_conda_name)]
Requirements = Annotated[tuple[str, ...], BeforeValidator(_requirements, json_schema_input_type=str | list[str])]
# The pattern is for the schema; the parser before it reports the rule in words.
Name = Annotated[
    str,
    BeforeValidator(_line),
    AfterValidator(_name_hint),
    Field(json_schema_extra={"pattern": NAME_PATTERN}),
]
DisplayName = Annotated[
    str,
    BeforeValidator(_line),
    AfterValidator(_display_name_hint),
    Field(json_schema_extra={"pattern": DISPLAY_NAME_PATTERN}),
]
RoleName = Annotated[
    str,
    _pattern(ROLE_PATTERN, "a role name: at most 20 lower-case letters, digits and '-', starting with a letter"),
    Field(json_schema_extra={"pattern": ROLE_PATTERN}),
]
EnvName = Annotated[
    str,
    Field(max_length=256, json_schema_extra={"pattern": ENV_PATTERN}),
    _pattern(ENV_PATTERN, "a variable name: letters, digits and '_', not starting with a digit"),
]
LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelValue = Annotated[str, BeforeValidator(_label_value, json_schema_input_type=str | int | float | bool)]
CodeDigest = Annotated[
    str,
    BeforeValidator(_line),
    AfterValidator(_code),
    Field(json_schema_extra={"pattern": CODE_PATTERN}),
]
