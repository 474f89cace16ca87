"""How a command ends that cannot go on: the one place where an error becomes one line."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from headloom.errors import HeadloomError, is_out_of_memory
from headloom.formats.files import reason_of

__all__ = ["left_by_reader", "one_line"]

#: Characters of an error that are shown: a path may have thousands.
_LONGEST = 1_200
#: What the system says of a place to write to; without a file's name, that is standard output.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)
#: How the native kernels begin to say that there are none of the name that the environment gives.
_NO_KERNELS = "native: no kernels for the instruction set"


def left_by_reader(error: BaseException) -> bool:
    """Whether the reader of standard output has left, as `head` does: nothing is wrong."""
    if not isinstance(error, BrokenPipeError):
        return False
    _forget_output()
    return True


def _forget_output() -> None:
    """Give what is still to be flushed when the interpreter ends a place to go."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def one_line(error: BaseException) -> str | None:
    """What is said of an error; None: it is a fault of headloom, whose traceback is needed."""
    text = _text(error)
    if text is None:
        return None
    text = text.replace("\r", "").replace("\n", "\\n")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return text


def _text(error: BaseException) -> str | None:
    match error:
        case HeadloomError():
            return str(error)
        case OSError(filename=str() | bytes() as name):
            name = os.fsdecode(name)
            return f"{name}: {reason_of(error)}. Check the path, and that it may be used."
        case OSError(errno=number) if number in _OF_OUTPUT:
            _forget_output()
            remedy = " Free some space." if number in (errno.ENOSPC, errno.EDQUOT) else ""
            return f"cannot write the output: {reason_of(error)}.{remedy}"
        case OSError():
            return f"the system refuses: {reason_of(error)}."
        case UnicodeEncodeError():
            return f"{error.object[:200]}: not UTF-8 text. Rename it, or convert it."
        case RecursionError():
            return "the input is nested too deeply to be read. Give a flatter one."
        case ValueError() if str(error).startswith(_NO_KERNELS):
            name = os.environ.get("HEADLOOM_INSTRUCTION_SET", "")
            return (
                f"HEADLOOM_INSTRUCTION_SET is {name}, which this processor or build lacks. Unset "
                f"it, "
                "or take one that headloom doctor names."
            )
        case OverflowError():
            return f"a number is too large: {error}. Give a smaller one."
        case BaseException() if is_out_of_memory(error):
            return "not enough memory. Give a smaller input, or use a larger machine."
    return None
