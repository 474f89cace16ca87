"""A cluster of Ray: one that runs already, or one on this machine, started and stopped here."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from weft.errors import DataError, InputError, installing, optional_package

__all__ = ["check_ray", "cluster"]

#: No statistics of use and no questions about them; nothing of actors and the cluster on the
#: console: a death is told by us; one attempt to reach a cluster (of 40 s), not twenty; what
#: `uv run` installs is not packed and sent.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
#: Of a cluster of our own: a token that it asks for; no watch on memory, which would end actors
#: because of what other programs take.
_OWN = {"RAY_AUTH_MODE": "token", "RAY_memory_monitor_refresh_ms": "0"}
#: Seconds in which the port of a cluster must answer.
_ANSWER = 10.0
#: Bytes of the store of a cluster of this machine: what passes through it are texts.
_STORE = 80 * 2**20
#: Where sockets may lie: their paths have 107 characters at most.
_LONGEST_FOLDER = 30


def check_ray() -> None:
    """Raise an InputError where Ray is not installed, without importing it."""
    with optional_package("--engine ray", installing("ray")):
        if find_spec("ray") is None:
            raise ModuleNotFoundError(name="ray")


@contextmanager
def cluster(address: str | None, processors: int) -> Iterator[Any]:
    """Ray, connected to a cluster while the block runs.

    Args:
        address: of its head, HOST:PORT; "auto": the one that runs on this machine; None: what
            RAY_ADDRESS says, or a cluster of this machine alone, which ends with the block.
        processors: of that cluster.

    Raises: DataError: the cluster cannot be reached, or not be started; InputError: no address.
    """
    place = address or os.environ.get("RAY_ADDRESS") or "local"
    ray = _imported(own=place == "local")
    if ray.is_initialized():  # by the program that calls us
        yield ray
        return
    if place == "local":
        with _own_cluster(ray, processors):
            yield ray
        return
    _check_answers(place)
    _connect(ray, f"the Ray cluster at {place} cannot be reached", address=place)
    try:
        yield ray
    finally:
        ray.shutdown()


def _imported(*, own: bool) -> Any:
    """The package, which reads its environment once, when it is imported, and hands it on.

    own: whether a cluster of our own is to be started: the ports of a cluster are open to the
    network, and who reaches one may run anything, unless it asks for a token.
    """
    os.environ.update(_QUIET)
    if own:
        os.environ.update(_OWN)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray
    import ray.exceptions

    return ray


@contextmanager
def _own_cluster(ray: Any, processors: int) -> Iterator[None]:
    """A cluster of this machine; its files go with it."""
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(
        prefix="weft-ray-", dir=parent if len(parent) <= _LONGEST_FOLDER else "/tmp"
    )
    try:
        _connect(
            ray, "Ray cannot start a cluster on this machine", address="local",
            num_cpus=processors, num_gpus=0, include_dashboard=False, _temp_dir=folder,
            object_store_memory=_STORE,
        )  # fmt: skip
        try:
            yield
        finally:
            ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _connect(ray: Any, failure: str, **options: Any) -> None:
    """Start or reach a cluster; what goes wrong is one line."""
    try:
        with _silence():
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        remedy = (
            "Check that `ray status` answers here, on a machine of the cluster, with the same "
            "versions of Ray and Python."
        )
        if _asks_for_token(error):
            reason = "it asks for a token, and has another than the one that is known here"
            remedy = (
                "Set RAY_AUTH_MODE=token and, unless it is in ~/.ray/auth_token, RAY_AUTH_TOKEN."
            )
        raise DataError(f"{failure}: {reason}. {remedy}") from None


def _asks_for_token(error: BaseException | None) -> bool:
    """Whether an error came from a refusal, which Ray hands on by its text alone."""
    while error is not None:
        if "AuthenticationError" in f"{type(error).__name__}: {error}":
            return True
        error = error.__cause__
    return False


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing on standard error while the block runs: the C++ side of Ray writes there."""
    sys.stderr.flush()
    ours = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(nowhere)


def _check_answers(address: str) -> None:
    """Raise where nobody listens at an address, which Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not (port.isascii() and port.isdigit()):
        raise InputError(
            f"--ray-address {address}: expected HOST:PORT of the cluster's head, as 10.0.0.1:6379, "
            "or auto. Give the command on a machine of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise DataError(
            f"the Ray cluster at {address} cannot be reached: {reason.lower()}. Check the address, "
            "and that `ray start --head` runs there; without --ray-address and RAY_ADDRESS, weft "
            "starts a cluster on this machine."
        ) from None
