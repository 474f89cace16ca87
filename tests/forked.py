"""Processes of ``python -m weft`` that cost no import of torch.

One process loads torch and the command line, and forks a child for each command. The child has
files of its own for standard input, output and error, the folder and the environment of who asks,
and ends as any process does: only what it would have imported is there already. What a command
imports, and when, is a question for a process that starts anew.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

LOADED = """
import json, os, runpy, socket, sys
import weft.cli, weft.training.loop, weft.training.progress
import torch

sys.argv, requests = ["weft"], socket.socket(fileno=int(sys.argv[1]))
while True:
    asked, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
    if not asked:
        raise SystemExit
    child = os.fork()
    if child == 0:
        break
    for file in files:
        os.close(file)
    requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
requests.close()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
asked = json.loads(asked)
os.chdir(asked["folder"])
os.environ.clear()
os.environ.update(asked["environment"])
sys.argv += asked["arguments"]
runpy.run_module("weft", run_name="__main__", alter_sys=True)
"""


class Loaded:
    """A process that has loaded weft, and forks."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOADED, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        theirs.close()

    def run(self, arguments: list[str], stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        """Exit status, standard output and error of ``weft ARGUMENTS``."""
        asked = {
            "arguments": arguments,
            "folder": str(Path.cwd()),
            "environment": {**os.environ, "OMP_NUM_THREADS": "1"},
        }
        with ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin)
            for file in files:
                file.seek(0)
            numbers = [file.fileno() for file in files]
            socket.send_fds(self._requests, [json.dumps(asked).encode()], numbers)
            status = int(self._requests.recv(16))
            for file in files:
                file.seek(0)
            return status, files[1].read(), files[2].read()

    def end(self) -> None:
        """End the process that forks."""
        self._requests.close()
        self._process.wait()
