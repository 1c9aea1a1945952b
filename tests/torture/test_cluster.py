"""A real Ray cluster of two nodes on this machine: the same bytes, also when a worker or a node is lost on the way."""

import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import world

from hardcase.errors import Problem
from hardcase.runs.folder import Store
from hardcase.runs.start import resume, start
from tiny import save_toys

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
pytest.importorskip("ray", reason="Ray is not installed: pip install 'hardcase[ray]'")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(world.plan(), folder)
    return world.left(folder)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with one place each."""
    from hardcase.runs.ray import QUIET

    before = dict(os.environ)
    os.environ.update(QUIET, PYTHONPATH=str(Path(world.__file__).parent), OMP_NUM_THREADS="1")
    import ray
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=small)
    nodes.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    ray.init(address=nodes.address, log_to_driver=False)
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
        os.environ.clear()
        os.environ.update(before)


def test_a_cluster_gives_the_same_bytes_also_when_a_worker_is_killed(tmp_path, cluster, whole):
    deadly = partial(world.dangerous, tmp_path, os.getpid(), 4, 1)
    start(world.plan(deadly, cluster="auto"), tmp_path / "run")
    assert len(list(tmp_path.glob("death-*"))) == 1
    assert world.left(tmp_path / "run") == whole


@pytest.mark.skipif(not LONG, reason="part of make torture")
def test_a_node_that_is_lost_is_survived_and_the_driver_resumes(tmp_path, cluster, whole):
    extra = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    cluster.wait_for_nodes()
    removed = threading.Event()

    def remove():
        while not (tmp_path / "run/findings/part-00000.parquet").exists():
            time.sleep(0.05)
        cluster.remove_node(extra, allow_graceful=False)
        removed.set()

    threading.Thread(target=remove, daemon=True).start()
    start(world.plan(partial(world.slow, 0.5), cluster="auto"), tmp_path / "run")
    assert removed.wait(30)
    assert world.left(tmp_path / "run") == whole


@pytest.mark.skipif(not LONG, reason="part of make torture")
def test_a_driver_that_is_stopped_goes_on_elsewhere(tmp_path, cluster, whole):
    class Impatient(world.Notes):
        shards = 0

        def shard(self, progress):
            self.shards = progress.done

        def stopped(self):
            return self.shards >= 2

    start(world.plan(cluster="auto"), tmp_path / "run", Impatient())
    assert 2 <= len(Store.open(tmp_path / "run").done()) < 6
    resume(world.plan(), tmp_path / "run")
    assert world.left(tmp_path / "run") == whole


@pytest.mark.skipif(not LONG, reason="part of make torture")
def test_an_error_on_the_cluster_is_told(tmp_path, cluster, whole):
    with pytest.raises(
        Problem, match=r"shard \d could not be searched: UnsendableError: of no use"
    ):
        start(world.plan(partial(world.failing, os.getpid()), cluster="auto"), tmp_path / "run")
    resume(world.plan(), tmp_path / "run")
    assert world.left(tmp_path / "run") == whole


@pytest.mark.parametrize("where", ["", "local", "local:0", "local:many", "ftp://host"])
def test_a_place_that_is_none_is_told_before_a_folder_is_made(tmp_path, where):
    with pytest.raises(Problem, match="it is auto, ray://HOST:PORT or local:N"):
        start(world.plan(cluster=where), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not LONG, reason="part of make torture")
def test_from_the_command_line(tmp_path):
    """``--cluster local:2`` and ``--workers 2`` leave the same files as one process."""
    import subprocess
    import sys

    save_toys(tmp_path, 120)
    (tmp_path / "model.py").write_text(
        "from hardcase.testing.toys import Quarters\ndef make(): return Quarters()\n"
    )
    words = "run --model model.py:make --data npz:toy.npz --method pgd --seeds 24 --set campaign.shard=4 --progress none"
    for name, where in {
        "one": [],
        "two": ["--workers", "2"],
        "ray": ["--cluster", "local:2"],
    }.items():
        command = [sys.executable, "-m", "hardcase", *words.split(), *where, "--out", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    parts = [
        [p.read_bytes() for p in sorted((tmp_path / n / "findings").iterdir())]
        for n in ("one", "two", "ray")
    ]
    assert len(parts[0]) == 6
    assert parts[0] == parts[1] == parts[2]
