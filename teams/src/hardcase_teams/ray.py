"""A Ray cluster: one that runs already (``auto``, ``ray://...``), or one made on this machine
(``local:N``).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, cast

import torch

from hardcase.campaign.record import Counts
from hardcase.environment import VERSION
from hardcase.errors import INTERNAL, HardcaseError
from hardcase.runs.workers import WorkerLost, WorkItem
from hardcase.types import Guide

RETRIES = 3
"""How often the cluster itself runs a shard again whose worker or machine is gone."""
STORE = 200 * 2**20
"""Bytes of shared memory of a cluster made here: a run, its guides and what shards bring home.
"""
STRICT = {"MKL_CBWR": "AUTO,STRICT"}
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class Cluster:
    """Ray tasks over shards; the ingredients of a phase are put into the cluster once."""

    def __init__(self, where: str, ingredients: Any, device: str) -> None:
        self.ray = _ray()
        self.connected = not self.ray.is_initialized()
        if self.connected:
            _connect(self.ray, where)
        self.ingredients = self.ray.put(ingredients)
        self.guides = self.ray.put(())
        self.gpus = int(device == "cuda")
        self.work = self.ray.remote(_work).options(
            num_cpus=1, num_gpus=self.gpus, max_retries=RETRIES, runtime_env={"env_vars": STRICT}
        )

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.connected:
            self.ray.shutdown()

    @property
    def slots(self) -> int:
        """One shard for every free place there is now: machines may come and go."""
        kind = ("CPU", "GPU")[self.gpus]
        return max(1, int(self.ray.cluster_resources().get(kind, 1)))

    def begin(self, guides: Sequence[Guide]) -> None:
        self.guides = self.ray.put(tuple(guides))

    def submit(self, task: WorkItem) -> Any:
        left = None if task.deadline is None else task.deadline - monotonic()
        return self.work.remote(
            replace(cast(Any, task), deadline=left), [self.ingredients, self.guides], _versions()
        )

    def wait(self, handles: Sequence[Any], seconds: float) -> Sequence[Any]:
        done, _ = self.ray.wait(list(handles), num_returns=1, timeout=seconds)
        return list(done)

    def result(self, handle: Any) -> Any:
        errors = self.ray.exceptions
        try:
            outcome = self.ray.get(handle)
        except errors.RayTaskError as error:
            if isinstance(error.cause, HardcaseError):
                raise error.cause from error
            raise _failure(error.cause) from error
        except errors.OutOfMemoryError as error:
            raise WorkerLost("A machine of the cluster ran out of memory.") from error
        except (
            errors.RaySystemError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
        ) as error:
            raise WorkerLost(str(error).splitlines()[0]) from error
        return outcome

    def live_counts(self) -> Mapping[int, Counts]:
        """Shards tell of themselves when they are finished."""
        return {}


def _failure(error: BaseException) -> HardcaseError:
    """Something went wrong in a worker before or after the search itself."""
    words = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
    return HardcaseError(
        f"a worker of the cluster failed: {type(error).__name__}: {words[-1].strip()}",
        "Every machine needs the same packages, and the modules that the model and the method come"
        " from.",
        code=INTERNAL,
    )


def _work(task: WorkItem, sent: Sequence[Any], versions: Mapping[str, str]) -> Any:
    """In a worker: `sent` are references to the ingredients and to the guides of the round."""
    if versions != _versions():
        raise HardcaseError(
            f"a machine of the cluster has other versions: {_versions()}, here {dict(versions)}.",
            "Failures would depend on where a shard was searched.",
            fix="the same hardcase and torch on every machine",
        )
    torch.set_num_threads(1)
    ingredients, guides = (_unpacked(place, reference) for place, reference in enumerate(sent))
    deadline = None if task.deadline is None else monotonic() + task.deadline
    own = replace(cast(Any, task), deadline=deadline)
    return own.work(ingredients, guides, lambda counts: None)


_kept: dict[int, tuple[str, Any]] = {}


def _unpacked(place: int, reference: Any) -> Any:
    """What a reference stands for, unpacked once in a worker process."""
    if _kept.get(place, ("",))[0] != reference.hex():
        _kept[place] = (reference.hex(), _ray().get(reference))
    return _kept[place][1]


def _versions() -> dict[str, str]:
    return {"hardcase": VERSION, "torch": str(torch.__version__)}


def _ray() -> Any:
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise HardcaseError(
            "a cluster needs Ray, which is not installed.", fix="pip install 'hardcase[ray]'"
        ) from error
    return ray


def check_place(where: str) -> None:
    """Raise if `where` does not name a cluster, or if Ray is missing."""
    if not re.fullmatch(r"auto|ray://.+|local:[1-9]\d*|(?!local:)[^:/]+:\d+", where):
        raise HardcaseError(
            f"cluster is {where!r}; it is auto, ray://HOST:PORT or local:N.",
            fix="--cluster local:2",
        )
    _ray()


def _connect(ray: Any, where: str) -> None:
    """Join the cluster that `where` names, or make one."""
    check_place(where)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    place: dict[str, Any] = {"address": where}
    if where.startswith("local:"):
        cores = int(where.removeprefix("local:"))
        place = {
            "address": "local",
            "num_cpus": cores,
            "include_dashboard": False,
            "object_store_memory": STORE,
        }
    try:
        ray.init(**place, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise HardcaseError(
            f"the cluster {where!r} cannot be reached: {(str(error).splitlines() or [''])[0]}",
            fix="ray start --head on one machine, or --cluster local:2",
        ) from error
