"""``python <folder>/trainmaster_runtime <order.json>`` and ``python -m trainmaster_runtime <order.json>``."""

import sys

if not __package__:
    # Run as a folder: only the folder itself is on the path, the package's parent is needed.
    sys.path[0] = sys.path[0].rpartition("/")[0] or "."

from trainmaster_runtime.main import main

main(sys.argv[1:])
