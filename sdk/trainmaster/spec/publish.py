"""Writes what others read of the schema: the file beside this module, for editors, and the tables of the reference.

``python -m trainmaster.spec.publish [docs/job-spec.md]``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trainmaster.spec.reference import with_tables
from trainmaster.spec.schema import spec_json_schema


def main(documents: list[str]) -> None:
    path = Path(__file__).with_name("job-spec.schema.json")
    path.write_text(json.dumps(spec_json_schema(), indent=2, ensure_ascii=False) + "\n")
    for document in map(Path, documents):
        document.write_text(with_tables(document.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
