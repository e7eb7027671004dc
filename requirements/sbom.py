"""Write bills of materials (CycloneDX 1.6, JSON) and check licences: ``python3 dev.py sbom [IMAGE|LOCK …]``.

``server.cdx.json`` has the locked packages of the control plane, with their digests; ``web.cdx.json`` the locked ones
of the web pages; and the bill of each image that is named what is in it: its Python packages, and those of its
distribution. For an image without Python, name its lock file. A package whose licence is unknown, or none of those that
may be passed on, is an error.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
OUTPUT: Final = ROOT / "dist" / "sbom"
# What the control plane's image installs.
LOCKS: Final = tuple(ROOT / "requirements" / name for name in ("platform.lock", "tensorboard.lock", "telemetry.lock"))
ENTRY: Final = re.compile(r"^([a-z0-9][\w.-]*)==([^\s;\\]+)[^\n]*\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)
# Licences of what is linked or imported, and not changed: permissive ones, and weak copyleft.
ALLOWED: Final = frozenset(
    {
        "0BSD", "Apache-2.0", "BlueOak-1.0.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC-BY-4.0", "CC0-1.0",
        "HPND", "ISC", "LGPL-3.0-only", "LGPL-3.0-or-later", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "OFL-1.1", "PSF-2.0",
        "Python-2.0", "Unlicense", "Zlib",
    }
)  # fmt: skip
# As packages write them that have no SPDX expression yet: https://peps.python.org/pep-0639/
ALIASES: Final = {
    "3-clause bsd license": "BSD-3-Clause", "apache 2.0": "Apache-2.0", "apache license version 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache software license": "Apache-2.0", "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause", "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "historical permission notice and disclaimer (hpnd)": "HPND", "isc license": "ISC", "isc license (iscl)": "ISC",
    "mit license": "MIT", "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "new bsd": "BSD-3-Clause",
    "python software foundation license": "PSF-2.0",
}  # fmt: skip
# Read by hand where a package states none, or one for its parts that are not installed.
KNOWN: Final = {
    "async-timeout": "Apache-2.0", "colorama": "BSD-3-Clause", "pywin32": "PSF-2.0", "tzdata": "Apache-2.0",
}  # fmt: skip
# What an image's own Python prints: its packages, and those of Debian.
LISTING: Final = """
import json, subprocess
from importlib.metadata import distributions
names = ("Name", "Version", "License-Expression", "License")
found = [[*(d.metadata[n] or "" for n in names), d.metadata.get_all("Classifier") or []] for d in distributions()]
query = ["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"]
print(json.dumps([found, subprocess.run(query, capture_output=True, text=True).stdout.split("\\n")]))
"""


@dataclass(frozen=True, slots=True)
class Component:
    """``licence``: an SPDX expression, or empty where it is unknown. ``sha256``: of its files."""

    name: str
    version: str
    kind: str  # of the package URL: pypi or deb
    licence: str = ""
    sha256: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        purl = f"pkg:{self.kind}/{'debian/' if self.kind == 'deb' else ''}{self.name}@{self.version}"
        entry: dict[str, Any] = {"type": "library", "name": self.name, "version": self.version, "purl": purl}
        entry["bom-ref"] = purl
        if self.licence:
            entry["licenses"] = [{"expression": self.licence}]
        if self.sha256:
            # One archive of several for other machines is installed; each is a distribution of the same component.
            entry["externalReferences"] = [
                {"type": "distribution", "url": purl, "hashes": [{"alg": "SHA-256", "content": digest}]}
                for digest in self.sha256
            ]
        return entry


def licence_of(name: str, expression: str, stated: str, classifiers: Iterable[str]) -> str:
    """The SPDX expression of a Python package by its metadata; empty: unknown. Of several classifiers one may be
    chosen.
    """
    if name.lower() in KNOWN:
        return KNOWN[name.lower()]
    if expression:
        return expression
    by_class = [text.rpartition("::")[2].strip() for text in classifiers if text.startswith("License ::")]
    found = [ALIASES.get(text.lower(), text) for text in (*by_class, stated.strip())]
    known = [text for text in found if is_allowed(text)]
    return " OR ".join(dict.fromkeys(known))


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression can be met by allowed licences alone. Exceptions (``WITH``) only allow more.

    https://spdx.github.io/spdx-spec/v3.0.1/annexes/spdx-license-expressions/
    """
    tokens = re.findall(r"[()]|[^\s()]+", re.sub(r"\bWITH\s+[^\s()]+", " ", expression))
    return bool(tokens) and _any_of(tokens) and not tokens


def _any_of(tokens: list[str]) -> bool:
    value = _all_of(tokens)
    while tokens[:1] == ["OR"]:
        del tokens[0]
        value = _all_of(tokens) or value
    return value


def _all_of(tokens: list[str]) -> bool:
    value = _licence_or_group(tokens)
    while tokens[:1] == ["AND"]:
        del tokens[0]
        value = _licence_or_group(tokens) and value
    return value


def _licence_or_group(tokens: list[str]) -> bool:
    first = tokens.pop(0) if tokens else ""
    if first != "(":
        return first in ALLOWED
    value = _any_of(tokens)
    return tokens[:1] == [")"] and tokens.pop(0) == ")" and value


def faults_of(components: Iterable[Component]) -> list[str]:
    """A sentence for each Python package that may not be passed on. Debian's are free by its own rules."""
    return [
        f"{item.name} {item.version}: its licence is {item.licence or 'unknown'}; replace it, or read it and add it to "
        "requirements/sbom.py."
        for item in components
        if item.kind == "pypi" and not is_allowed(item.licence)
    ]


def locked_components(*locks: Path) -> list[Component]:
    """What lock files list; licences as the installed packages state them."""
    found = []
    for lock in locks:
        for name, version, digests in ENTRY.findall(lock.read_text(encoding="utf-8")):
            try:
                about = metadata(name)
            except PackageNotFoundError:
                licence = KNOWN.get(name, "")
            else:
                classifiers = about.get_all("Classifier") or ()
                licence = licence_of(name, about["License-Expression"] or "", about["License"] or "", classifiers)
            found.append(Component(name, version, "pypi", licence, tuple(re.findall(r"sha256:(\w+)", digests))))
    return found


def image_components(image: str) -> list[Component]:
    """Of a built image: what its own Python and dpkg list. Raises ``CalledProcessError``: it does not run."""
    command = ("docker", "run", "--rm", "-i", "--network", "none", "--entrypoint", "python3", image, "-")
    listed = subprocess.run(command, input=LISTING, capture_output=True, text=True, check=True).stdout
    packages, debian = json.loads(listed)
    own = ("trainmaster",)
    python = [
        Component(name, version, "pypi", licence_of(name, expression, stated, classifiers))
        for name, version, expression, stated, classifiers in packages
        if not name.startswith(own)
    ]
    return python + [Component(*line.split(" ", 1), "deb") for line in debian if line]


def bill_of(name: str, components: Iterable[Component], now: datetime) -> dict[str, Any]:
    """https://cyclonedx.org/docs/1.6/json/"""
    unique = {item.to_json()["purl"]: item for item in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": now.isoformat(timespec="seconds"),
            "component": {"type": "application", "name": name, "bom-ref": name},
        },
        "components": [item.to_json() for _, item in sorted(unique.items())],
    }


def web_bill() -> dict[str, Any] | None:
    """As npm writes it, of what the pages contain; ``None``: there is no npm."""
    command = ("npm", "sbom", "--sbom-format", "cyclonedx", "--omit", "dev", "--package-lock-only")
    try:
        found = subprocess.run(command, cwd=ROOT / "web", capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    bill: dict[str, Any] = json.loads(found)
    return bill


def web_components(bill: Mapping[str, Any]) -> list[Component]:
    """For the check of licences."""
    found = []
    for item in bill["components"]:
        licences = [each.get("expression") or each["license"].get("id", "") for each in item.get("licenses", ())]
        found.append(Component(item["name"], item["version"], "pypi", " AND ".join(licences)))
    return found


def main(images: list[str]) -> int:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    bills: dict[str, tuple[dict[str, Any], list[Component]]] = {}
    now = datetime.now(UTC)  # noqa: TID251 (a program of its own)
    server = locked_components(*LOCKS)
    bills["server"] = bill_of("trainmaster-server", server, now), server
    web = web_bill()
    if web is None:
        print("No bill of the web pages: npm is missing.")
    else:
        bills["web"] = web, web_components(web)
    for image in images:
        try:
            found = locked_components(Path(image)) if image.endswith(".lock") else image_components(image)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{image}: it cannot be read: {getattr(error, 'stderr', None) or error}", file=sys.stderr)
            return 1
        bills[re.sub(r"\W+", "-", image)] = bill_of(image, found, now), found
    licences = []
    for name, (bill, components) in bills.items():
        (OUTPUT / f"{name}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
        licences += [f"{name}\t{item.name}\t{item.version}\t{item.licence or '?'}" for item in components]
        print(f"{OUTPUT.relative_to(ROOT)}/{name}.cdx.json: {len(components)} components")
    (OUTPUT / "licences.tsv").write_text("\n".join(licences) + "\n", encoding="utf-8")
    faults = [f"{name}: {fault}" for name, (_, components) in bills.items() for fault in faults_of(components)]
    print("\n".join(faults) or "Every licence is known and may be passed on.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
