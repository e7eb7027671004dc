"""Write what the contracts give now into the golden files: ``python tests/unit/contracts/regenerate.py``.

Each file holds its own inputs (spec, layout, context); only ``rendered`` is written. Read the difference before you
commit it: programs in other people's images depend on these values.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "sdk")]

from trainmaster.spec import parse_spec  # noqa: E402

from core.domain.contracts import AttemptContext, TrialContext, render  # noqa: E402 - after the path is set
from core.domain.jobs.layout import Layout  # noqa: E402


def render_case(case: dict[str, Any]) -> dict[str, Any]:
    """Replica -> everything that it is started with, as JSON."""
    spec = parse_spec(case["spec"])
    layout = Layout.from_json(case["layout"])
    about = dict(case["context"])
    if "trial" in about:
        about["trial"] = TrialContext(**about["trial"])
    context = AttemptContext(**about)
    rendered = {}
    for replica in layout.replicas:
        one = render(spec, layout, replica, context)
        rendered[f"{replica.role}-{replica.index}"] = {
            "env": dict(sorted(one.env.items())),
            "process_env": [dict(sorted(process.items())) for process in one.process_env],
            "command": one.command if isinstance(one.command, str | None) else list(one.command),
            "args": list(one.args),
            "files": dict(one.files),
            "clashes": list(one.clashes),
            "omitted": list(one.omitted),
        }
    return rendered


def main() -> None:
    for path in sorted(Path(__file__).with_name("golden").glob("*.json")):
        case = json.loads(path.read_text())
        case["rendered"] = render_case(case)
        path.write_text(json.dumps(case, indent=1) + "\n")
        print(path.name)


if __name__ == "__main__":
    main()
