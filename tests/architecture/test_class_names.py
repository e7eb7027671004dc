"""A class name stands for one thing in the whole code base."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.architecture.source_tree import source_modules, syntax_tree

# Names that a framework or a protocol fixes, or that are the same thing in distributions which share no code.
EXCEPTIONS: frozenset[str] = frozenset(
    {
        "Checkpoint",  # the library's for training scripts, and the control plane's table of the same
        "Compression",  # Horovod's API, for torch and for TensorFlow
        "Job",  # the control plane's table, and the client's handle of the same
        "State",  # Horovod's API, and the library's own elastic state
    }
)

# The client raises the error that the server has raised, under the same name.
MIRRORED = frozenset({("core/domain/errors.py", "sdk/trainmaster/errors.py")})


def test_no_public_class_name_is_used_in_two_modules() -> None:
    places = defaultdict(list)
    for path in source_modules():
        if path.parts[0] in {"benchmarks", "examples"}:
            continue
        for node in syntax_tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    duplicates = {
        name: paths
        for name, paths in places.items()
        if len(paths) > 1 and name not in EXCEPTIONS and tuple(sorted(paths)) not in MIRRORED
    }
    assert not duplicates, f"{len(duplicates)} class names with two meanings: {duplicates}"
