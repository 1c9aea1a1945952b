"""A real Ray cluster of two nodes on this machine: the same bytes, also when a worker or a node is lost on the way."""

import os
import threading
import time
from pathlib import Path

import pytest
import world

from hardcase.errors import HardcaseError
from hardcase.runs.folder import Store
from hardcase.runs.start import resume, start

pytest.importorskip("ray", reason="Ray is not installed: pip install 'hardcase[ray]'")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with one place each."""
    from hardcase_teams.ray import QUIET

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
    deadly = world.of(world.Dangerous, tmp_path, os.getpid(), 4, 1)
    start(world.plan(deadly, cluster="auto"), tmp_path / "run")
    assert len(list(tmp_path.glob("death-*"))) == 1
    assert world.left(tmp_path / "run") == world.left(whole)


@pytest.mark.long
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
    start(world.plan(world.of(world.Slow, 0.5), cluster="auto"), tmp_path / "run")
    assert removed.wait(30)
    assert world.left(tmp_path / "run") == world.left(whole)


@pytest.mark.long
def test_a_driver_that_is_stopped_goes_on_elsewhere(tmp_path, cluster, whole):
    start(world.plan(cluster="auto"), tmp_path / "run", world.Impatient(3))
    assert 2 <= len(Store.open(tmp_path / "run").done()) < 6
    resume(world.plan(), tmp_path / "run")
    assert world.left(tmp_path / "run") == world.left(whole)


@pytest.mark.long
def test_an_error_on_the_cluster_is_told(tmp_path, cluster, whole):
    source = world.of(world.Failing, os.getpid())
    with pytest.raises(
        HardcaseError, match=r"shard \d could not be searched: UnsendableError: of no"
    ):
        start(world.plan(source, cluster="auto"), tmp_path / "run")
    resume(world.plan(), tmp_path / "run")
    assert world.left(tmp_path / "run") == world.left(whole)


@pytest.mark.parametrize("where", ["", "local", "local:0", "local:many", "ftp://host"])
def test_a_place_that_is_none_is_told_before_a_folder_is_made(tmp_path, where):
    with pytest.raises(HardcaseError, match="it is auto, ray://HOST:PORT or local:N"):
        start(world.plan(cluster=where), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_from_the_command_line(user, command):
    """``--cluster local:2`` and ``--workers 2`` leave the same files as one process."""
    words = "run --model model.py:make --data npz:toy.npz --method pgd --images 24 --set campaign.shard=4 --progress none"
    parts = []
    for name, where in (("one", ""), ("two", "--workers 2"), ("ray", "--cluster local:2")):
        code, said = command(f"{words} {where} --out {name}")
        assert code == 0, said
        parts.append([path.read_bytes() for path in sorted(Path(name, "findings").iterdir())])
    assert len(parts[0]) == 6
    assert parts[0] == parts[1] == parts[2]
