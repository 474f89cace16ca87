"""Locks, and what is written on a system that has none for folders, as Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headloom.formats.locks import lock, open_folder

# As on Windows: no fcntl, no folders that can be opened, locks of files by msvcrt, and a rename
# that refuses what is open or there. Everything else is what this system has.
WINDOWS = """
import os, sys, types
from pathlib import Path
import torch, pyarrow.parquet, safetensors.torch, numpy, tomllib  # these ask for the true system
import headloom

folder = Path(sys.argv[1])
for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
    delattr(os, name)
import fcntl
opened, rename = os.open, os.rename

def lock(descriptor, how, count):
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None

def open_file(path, flags, *rest, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied")
    return opened(path, flags, *rest, **named)

def careful(old, new, *rest, replaces=False, **named):
    for number in os.listdir("/proc/self/fd"):
        try:
            assert os.readlink("/proc/self/fd/" + number) != os.path.realpath(old), old
        except FileNotFoundError:
            pass
    assert replaces or not os.path.exists(new), new
    return rename(old, new, *rest, **named)

import shutil
shutil._use_fd_functions = False  # it opens folders
sys.modules["fcntl"] = None
sys.modules["msvcrt"] = types.SimpleNamespace(locking=lock, LK_NBLCK=2)
platform, sys.platform = sys.platform, "win32"
import headloom.formats.locks
sys.platform = platform
os.open, os.rename = open_file, careful
os.replace = lambda old, new, **named: careful(old, new, replaces=True, **named)
import headloom.formats.folders
for module in (headloom.formats.folders, headloom.formats.locks):
    module.sys = types.SimpleNamespace(platform="win32")

from headloom.formats.files import atomic_file, open_file as read
from headloom.formats.folders import atomic_folder, own_folder
from headloom.formats.run import RunFolder

for text in ("one", "two"):
    with atomic_file(folder / "file") as temporary:
        temporary.write_text(text)
    assert read(folder / "file").read() == text.encode()
    with atomic_folder(folder / "made", lambda path: None) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "part").write_text(text)
    assert (folder / "made" / "inner" / "part").read_text() == text
with own_folder(folder / "own", "does this") as own:
    assert own.is_dir()
with RunFolder.training_lock(folder / "run"):
    RunFolder.create_or_open(folder / "run", {})
with RunFolder.training_lock(folder / "none"):
    pass
q = torch.randn(2, 5, 8)
headloom.from_queries_keys(q, q).save(folder / "t.loom")
assert headloom.open(folder / "t.loom").layers[0].graph.keys.shape[:2] == (2, 5)
print(sorted(path.name for path in folder.iterdir()))
"""


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    one, other = open_folder(tmp_path), open_folder(tmp_path)
    assert one is not None
    assert other is not None
    lock(one)
    with pytest.raises(BlockingIOError):
        lock(other)
    os.close(one)
    lock(other)
    os.close(other)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="plays Windows on Linux")
def test_all_is_written_where_folders_have_no_locks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['file', 'made', 'own', 'run', 't.loom']"
