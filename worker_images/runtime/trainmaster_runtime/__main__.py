"""``python <folder>/trainmaster_runtime <order.json>`` and ``python -m trainmaster_runtime <order.json>``."""

import sys

if not __package__:
    # Run by path: the package's parent must be on sys.path, and the folder itself must not. The quickest way in is
    # `python -I -S trainmaster_runtime/__main__.py`, which spares the 5 ms that runpy takes.
    import os

    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(_folder), *(entry for entry in sys.path if os.path.abspath(entry) != _folder)]

from trainmaster_runtime.main import main

main(sys.argv[1:])
