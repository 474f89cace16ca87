"""Entry point of ``headloom`` and ``python -m headloom``; Ctrl-C ends it with exit code 130."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

#: Spins of an idle torch thread on Linux before it sleeps. libgomp's default is milliseconds, which
#: on a busy machine blocks the core of the thread it waits for. Much less than this slows an idle
#: machine: docs/what_did_not_help.md, Training.
_SPINS = "2000"

_STOPPED = 130  # exit code of a program stopped by Ctrl-C


def _stop_now(number: int, frame: FrameType | None) -> NoReturn:
    """Exit immediately."""
    os.write(2, b"headloom: stopped.\n")
    os._exit(_STOPPED)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt; during an import, exit immediately.

    An interrupted import may swallow the exception and leave a broken module: NumPy then recurses
    without end.
    """
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename == "<frozen importlib._bootstrap>":
            _stop_now(number, frame)
        caller = caller.f_back
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; Ctrl-C prints one line, also during imports."""
    # Waiting OpenMP threads sleep soon, unless the environment is set; before torch.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    code: object = "not known"

    def end() -> None:
        # Python's own shutdown could fail: a studio thread in a native kernel would abort the
        # process; and after Ctrl-C inside an exec(), as in dataclasses, Python would kill itself by
        # the signal although it was handled.
        if isinstance(code, int):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(code)

    atexit.register(end)  # the first to be registered is the last to be called
    # A shell starts background jobs with Ctrl-C ignored: keep that.
    handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if handles:
            signal.signal(signal.SIGINT, _stop)
        from headloom.cli import main as run

        run()
        code = 0
    except KeyboardInterrupt:
        code = _STOPPED
        print("headloom: stopped.", file=sys.stderr)
        raise SystemExit(code) from None
    except SystemExit as ending:
        code = 0 if ending.code is None else ending.code
        raise
    finally:
        if handles:
            signal.signal(signal.SIGINT, _stop_now)


if __name__ == "__main__":
    main()
