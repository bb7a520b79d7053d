"""What can be asked of pruning: each method takes its own options, and refuses the others'."""

from dataclasses import fields

import pytest

from nearlm.base import OptionError
from nearlm.shrink import TAKES, PruneOptions

LEAST = {"random": {"keep": 0.5}, "kmeans": {}, "merge": {"neighbors": 5}, "rank": {"keep": 0.5}}
GIVEN = {
    "keep": 0.5,
    "neighbors": 5,
    "ratio": 3.0,
    "top_tokens": 9,
    "k": 7,
    "count_self": True,
    "seed": 1,
    "index": "x",
}


def test_every_option_is_known_to_some_method():
    assert {field.name for field in fields(PruneOptions)} == {"method"}.union(*TAKES.values())


@pytest.mark.parametrize("method", TAKES)
@pytest.mark.parametrize("name", GIVEN)
def test_a_method_takes_its_own_options_only(method, name):
    options = {**({} if name in ("keep", "neighbors", "ratio") else LEAST[method]), name: GIVEN[name]}
    if name in TAKES[method]:
        assert PruneOptions(method, **options).to_json()[name] == GIVEN[name]
    else:
        with pytest.raises(OptionError, match=f"`{name}` has no effect with `method='{method}'`; it takes `"):
            PruneOptions(method, **options)


@pytest.mark.parametrize("method", TAKES)
def test_what_is_noted_in_a_store_has_the_defaults_filled_in(method):
    noted = PruneOptions(method, **LEAST[method]).to_json()
    assert noted == {"method": method, **TAKES[method], **LEAST[method]}


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("best", {}, "expected one of random, kmeans, merge, rank"),
        ("kmeans", {"ratio": 2.0, "keep": 0.5}, "`ratio` or `keep`, not both"),
        ("kmeans", {"ratio": 0.5}, "`ratio` is 0.5"),
        ("kmeans", {"ratio": float("inf")}, "`ratio` is inf"),
        ("kmeans", {"top_tokens": 0}, "`top_tokens` is 0"),
        ("kmeans", {"keep": 0.0}, "`keep` is 0.0"),
        ("merge", {}, "one of the two"),
    ],
)
def test_nonsense_is_refused_before_any_store_is_opened(method, options, message):
    with pytest.raises(OptionError, match=message):
        PruneOptions(method, **options)
