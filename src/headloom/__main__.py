"""The command ``headloom``, and ``python -m headloom``: Ctrl-C ends it with 130, early and late."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

#: How often, on Linux, a thread of torch's looks whether there is work for it before it sleeps. As
#: libgomp has it, it looks for milliseconds: on a busy machine on the very core that the thread it
#: waits for could have. Much less than this, and a quiet machine is slower:
#: docs/what_did_not_help.md, Training.
_LOOKS = "2000"

_STOPPED = 130  # what a shell says of a program that was ended by Ctrl-C


def _stop_now(number: int, frame: FrameType | None) -> NoReturn:
    """End at once."""
    os.write(2, b"headloom: stopped.\n")
    os._exit(_STOPPED)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Raise, so that a verb can end well; while a module is imported, end at once.

    A module whose import is interrupted may swallow the exception and stay half made: NumPy's then
    calls itself without end.
    """
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename == "<frozen importlib._bootstrap>":
            _stop_now(number, frame)
        caller = caller.f_back
    raise KeyboardInterrupt


def _sleep_soon() -> None:
    """Let threads that wait sleep soon, unless the environment says how they wait; before torch."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _LOOKS)


def main() -> None:
    """Run the command line; Ctrl-C is answered in one line, also while modules are loaded."""
    _sleep_soon()
    code: object = "not known"

    def end() -> None:
        # What Python does after this could still go wrong. A thread of the studio that is in a
        # native kernel would abort the process when Python takes it down; and where Ctrl-C struck
        # inside an exec(), as dataclasses use it, Python would end itself by the signal, although
        # it was answered.
        if isinstance(code, int):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(code)

    atexit.register(end)  # the first to be registered is the last to be called
    # A shell starts jobs in the background with Ctrl-C ignored: that stays.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if heard:
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
        if heard:
            signal.signal(signal.SIGINT, _stop_now)


if __name__ == "__main__":
    main()
