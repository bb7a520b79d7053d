"""A real Ray of three nodes on this machine, which all tests of this folder share, and stores to work on."""

import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import pytest

from nearlm.cluster.session import import_ray, joined
from synthetic import make_store

OBJECTS = 80 << 20  # bytes of an object store


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep all tests that need Ray in one process, so that it is started once."""
    for item in items:
        if {"nodes", "address", "ray_here"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("ray"))
            item.add_marker(pytest.mark.timeout(400))  # on a busy machine workers are slow to import torch


@pytest.fixture(scope="session")
def nodes():
    """A cluster of a head, on which nothing can be placed, and two nodes with two CPUs each."""
    import_ray()
    from ray.cluster_utils import Cluster

    noticing = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 4}
    head = {"num_cpus": 0, "object_store_memory": OBJECTS, "include_dashboard": False, "_system_config": noticing}
    made = Cluster(head_node_args=head, initialize_head=True)
    for _ in range(2):
        made.add_node(num_cpus=2, object_store_memory=OBJECTS)
    yield made
    made.shutdown()


@pytest.fixture(scope="session")
def address(nodes) -> str:
    return nodes.address


@pytest.fixture
def ray_here(address):
    """This process as a driver of the cluster."""
    with joined(address) as session:
        yield session


@pytest.fixture
def lose_a_node(nodes):
    """Return what kills one of the nodes that work; afterwards there is another in its place."""
    lost = []

    def lose() -> None:
        lost.append(1)
        nodes.remove_node(next(node for node in nodes.worker_nodes), allow_graceful=False)

    yield lose
    for _ in lost:
        nodes.add_node(num_cpus=2, object_store_memory=OBJECTS)


@pytest.fixture(scope="session")
def keys():
    """Keys that vary more along some axes than others, many of them twice."""
    rng = np.random.default_rng(0)
    made = (rng.normal(0, 1, (6000, 16)) * np.geomspace(2, 0.2, 16)).astype(np.float16)
    made[3000:4000] = made[:1000]
    return made


@pytest.fixture(scope="session")
def indexed(tmp_path_factory, keys):
    """A store with indexes of several kinds."""
    from nearlm.search import build_index

    values = np.random.default_rng(1).integers(0, 50, len(keys))
    store = make_store(tmp_path_factory.mktemp("served") / "store", keys, values, shard=2500)
    build_index(store, "IVF24,SQ8", nprobe=6)
    build_index(store, "IVF16_HNSW8,SQ4", name="graph", nprobe=5)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("nearlm.search.training.GROUPED_LISTS", 30)
        build_index(store, "IVF40,SQ4", name="grouped", nprobe=5)
    build_index(store, "flat", name="flat")
    return store


@pytest.fixture(scope="session")
def queries(keys):
    """Queries, some of them keys of the store, and one that is no number."""
    rng = np.random.default_rng(2)
    made = keys[rng.integers(0, len(keys), 90)].astype(np.float32)
    made[30:] += rng.normal(0, 0.3, (60, 16)).astype(np.float32)
    made[7] = np.nan
    return made
