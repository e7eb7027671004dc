"""Writes the schema beside this module, for editors: ``python -m trainmaster.spec.publish``."""

from __future__ import annotations

import json
from pathlib import Path

from trainmaster.spec.schema import spec_json_schema


def main() -> None:
    path = Path(__file__).with_name("job-spec.schema.json")
    path.write_text(json.dumps(spec_json_schema(), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
