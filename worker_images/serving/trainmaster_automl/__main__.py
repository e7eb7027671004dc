"""``python -m trainmaster_automl``, or this file itself if the package is not installed."""

from __future__ import annotations

import os
import sys
import warnings

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from trainmaster_automl.options import DataProblem, limit_threads, parse_options


def main() -> int:
    # E.g. of a fold without every class, or a solver that has not converged: the trial's score is what counts.
    warnings.simplefilter("ignore")
    try:
        options = parse_options(sys.argv[1:])
        limit_threads(options)
        if options.kind == "images":
            from trainmaster_automl.images import run
        else:
            from trainmaster_automl.tabular import run
        run(options)
    except DataProblem as problem:
        print(str(problem), file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
