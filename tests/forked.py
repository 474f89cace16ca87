"""Processes of ``python -m headloom`` that cost no import of torch.

One process loads torch and the command line, and forks a child for each command. The child has
files of its own for standard input, output and error, the folder and the environment of who asks,
and ends as any process does: only what it would have imported is there already. What a command
imports, and when, is a question for a process that starts anew; on systems other than Linux, where
what has loaded torch cannot be forked, each starts anew.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

FORKS = sys.platform == "linux"
#: Each child has a parent of its own, which waits for it and says how it ended: several may run.
LOADED = """
import json, os, runpy, signal, socket, sys
import headloom.cli, headloom.api.trace, headloom.training.loop, headloom.training.progress

# Every optimizer of torch loads torch._dynamo, and SymPy with it. Not Triton, which is for GPUs:
# it says at the end of a process what it leaks.
sys.modules["triton"] = None
import torch, torch._dynamo
del sys.modules["triton"]

sys.argv, requests = ["headloom"], socket.socket(fileno=int(sys.argv[1]))
waiting = 0
while True:
    asked, files, _, _ = socket.recv_fds(requests, 1 << 20, 4)
    # At the end all are waited for, so that their time is counted as the tests'.
    while waiting and os.waitpid(-1, os.WNOHANG if asked else 0)[0]:
        waiting -= 1
    if not asked:
        raise SystemExit
    if os.fork() == 0:
        break
    waiting += 1
    for file in files:
        os.close(file)
requests.close()
*files, said = files
child = os.fork()
if child:
    for file in files:
        os.close(file)
    os.write(said, b"%d\\n" % child)
    os.write(said, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)
os.close(said)
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
# A shell starts jobs in the background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
asked = json.loads(asked)
if asked["session"]:
    os.setsid()
os.chdir(asked["folder"])
os.environ.clear()
os.environ.update(asked["environment"])
sys.argv += asked["arguments"]
if asked["program"] is None:
    runpy.run_module("headloom", run_name="__main__", alter_sys=True)
else:
    exec(asked["program"], {"__name__": "__main__"})
"""


def script(path: Path) -> str:
    """A program that does what ``python PATH`` does."""
    return (
        "import runpy, sys\n"
        f"sys.argv[0] = {str(path)!r}\n"
        f"sys.path[0] = {str(path.parent)!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )


class Forked:
    """A process that runs: what the tests need of `subprocess.Popen`, by the same names.

    Standard output is read as it comes; standard error is a file, read when the process has ended.
    """

    def __init__(self, said: int, output: int, errors: int) -> None:
        self._said = os.fdopen(said, "rb", buffering=0)
        self.stdout, self._errors = os.fdopen(output, "rb"), os.fdopen(errors, "rb")
        self.pid = int(self._said.readline())
        self.returncode: int | None = None

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._said], [], [], seconds)[0]:
            self.returncode = int(self._said.readline())
        return self.returncode

    def poll(self) -> int | None:
        """The exit status, negative where a signal ended it; None while it runs."""
        return self._wait(0)

    def wait(self) -> int:
        """The exit status, as soon as there is one."""
        status = self._wait(None)
        assert status is not None
        return status

    def communicate(self) -> tuple[bytes, bytes]:
        """What of standard output was not read yet, and standard error, as soon as it ends."""
        out = self.stdout.read()
        self.wait()
        return out, self.errors()

    def errors(self) -> bytes:
        """All that it has written to standard error."""
        self._errors.seek(0)
        return self._errors.read()

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has, and its status is on its way
                os.kill(self.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()
        for file in (self._said, self.stdout, self._errors):
            file.close()


class Anew(Forked):
    """The same of a process that was started anew."""

    def __init__(self, process: subprocess.Popen[bytes], output: int, errors: int) -> None:
        self._process, self.pid, self.returncode = process, process.pid, None
        self._said = self.stdout = os.fdopen(output, "rb")
        self._errors = os.fdopen(errors, "rb")

    def _wait(self, seconds: float | None) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.returncode = self._process.wait(seconds)
        return self.returncode


class Loaded:
    """A process that has loaded headloom, and forks."""

    def __init__(self) -> None:
        if not FORKS:
            return
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOADED, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        theirs.close()

    def start(
        self,
        *arguments: object,
        program: str | None = None,
        stdin: bytes | int = b"",
        stdout: int | None = None,
        stderr: int | None = None,
        folder: Path | None = None,
        session: bool = False,
        **environment: str,
    ) -> Forked:
        """Start ``headloom ARGUMENTS``, or a program in Python with these arguments.

        Args:
            stdin: what it reads, or the file that it reads from.
            stdout, stderr: the files that it writes to, where they are not read here.
            folder: the current one, if not that of this process.
            session: whether it leads a process group of its own, which can be killed with it.
            environment: what is set beside the environment of this process.
        """
        words = [str(argument) for argument in arguments]
        place = str(folder or Path.cwd())
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        asked = {"program": program, "arguments": words, "folder": place, "session": session}
        asked["environment"] = environment
        (output, its_output), (said, its_said) = os.pipe(), os.pipe()
        with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as errors:
            if isinstance(stdin, bytes):
                read.write(stdin)
                read.seek(0)
                stdin = read.fileno()
            stdout = its_output if stdout is None else stdout
            stderr = errors.fileno() if stderr is None else stderr
            if not FORKS:
                what = ("-m", "headloom") if program is None else ("-c", program)
                process = subprocess.Popen(
                    [sys.executable, *what, *words],
                    stdin=stdin, stdout=stdout, stderr=stderr, cwd=place, env=environment,
                    start_new_session=session,
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                )  # fmt: skip
                for file in (its_output, said, its_said):
                    os.close(file)
                return Anew(process, output, os.dup(errors.fileno()))
            files = [stdin, stdout, stderr, its_said]
            socket.send_fds(self._requests, [json.dumps(asked).encode()], files)
            os.close(its_output)
            os.close(its_said)
            return Forked(said, output, os.dup(errors.fileno()))

    def run(self, *arguments: object, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        """Exit status, standard output and error of ``headloom ARGUMENTS``."""
        with self.start(*arguments, stdin=stdin) as process:
            out, errors = process.communicate()
            return process.wait(), out, errors

    def end(self) -> None:
        """End the process that forks."""
        if not FORKS:
            return
        self._requests.close()
        self._process.wait()
