"""A scheduler whose loop stalls on SIGUSR2."""

import signal
import sys
import time
from types import FrameType

from scheduler.__main__ import main

STALL_SECONDS = 1.0


def stall(_: int, __: FrameType | None) -> None:
    """Python runs this in the loop's thread; gRPC's threads keep running."""
    sys.stderr.write('{"event": "stalls"}\n')
    time.sleep(STALL_SECONDS)
    sys.stderr.write('{"event": "stalled"}\n')


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, stall)
    sys.exit(main())
