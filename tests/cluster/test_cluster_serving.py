"""Serving an index on Ray: what is started, found and stopped."""

import pytest

from nearlm.base import OptionError
from nearlm.cluster.serving import Served, find_served, serve_index, stop_index
from nearlm.cluster.session import ClusterError, ServeOptions


def test_names_tell_what_is_served():
    served = Served("0123456789abcdef", 2, 3)
    assert served.names[0] == "index-0123456789abcdef-part1of2-replica1of3"
    assert len(set(served.names)) == 6


def test_an_index_is_served_until_it_is_stopped(indexed, ray_here, address, nearlm):
    assert find_served(ray_here, indexed, "default") is None
    served = serve_index(ray_here, indexed, ServeOptions(shards=2, cpus=0.1))
    assert find_served(ray_here, indexed, "default") == served
    assert find_served(ray_here, indexed, "graph") is None
    assert serve_index(ray_here, indexed, ServeOptions(shards=2, cpus=0.1)) == served
    with pytest.raises(ClusterError, match=r"is served in 2 parts, 1 times; stop that first"):
        serve_index(ray_here, indexed, ServeOptions(shards=3, cpus=0.1))
    code, out, err = nearlm("serve-index", indexed.path, "--ray", address, "--stop")
    assert (code, out.split()) == (0, ["stopped", "2"]), err
    assert find_served(ray_here, indexed, "default") is None
    assert stop_index(ray_here, indexed) == 0


@pytest.mark.parametrize(
    ("index", "options", "said"),
    [
        ("flat", ServeOptions(), r"index 'flat' \(Flat\) cannot be served; make one with `factory='auto'`"),
        ("default", ServeOptions(shards=25), "`shards` is 25, but the index has 24 lists only"),
    ],
)
def test_what_cannot_be_served_is_refused(indexed, ray_here, index, options, said):
    with pytest.raises(OptionError, match=said):
        serve_index(ray_here, indexed, options, index=index)
