"""What a user of Ray submits: it imports from its folder, prints, and ends as it is told."""

import os
import sys
import time

from greetings import GREETING

print(GREETING, *sys.argv[1:], os.environ.get("LR", ""), flush=True)
if os.environ.get("WAITS"):
    while True:
        time.sleep(0.1)
sys.exit(int(os.environ.get("CODE", "0")))
