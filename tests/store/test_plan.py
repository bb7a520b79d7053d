"""Options of a build, and how one plan is told from another."""

import dataclasses

import pytest

from nearlm.base.errors import OptionError
from nearlm.store import BuildOptions, Datastore, difference
from nearlm.store.plan import BuildPlan


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        BuildOptions().window = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": 0}, "`window` is 0, expected at least 1"),
        ({"stride": -1}, "`stride` is -1"),
        ({"batch_tokens": 0}, "`batch_tokens` is 0"),
        ({"shard_records": 0}, "`shard_records` is 0"),
        ({"key_dtype": "int4"}, "`key_dtype` is 'int4', expected one of float16, float32, int8"),
    ],
)
def test_nonsense_is_refused_at_once(wrong, message):
    with pytest.raises(OptionError, match=message):
        BuildOptions(**wrong)


def test_defaults_are_filled_in_for_the_model(lm):
    found = BuildOptions().resolve_options(lm, None)
    assert (found.window, found.stride, found.pack, found.separator) == (256, 256, False, "eos")
    assert (found.key_dtype, found.key_tap, found.batch_tokens) == ("float16", lm.tap.path, 2048)
    assert BuildOptions(window=16).resolve_options(lm, None).stride == 16
    with pytest.raises(OptionError, match="reads at most 256 tokens"):
        BuildOptions(window=300).resolve_options(lm, None)
    with pytest.raises(OptionError, match="stride"):
        BuildOptions(window=16, stride=17).resolve_options(lm, None)


def test_an_append_takes_what_the_store_has_and_refuses_others(lm, kept):
    manifest = Datastore.open(kept).manifest
    found = BuildOptions(window=16).resolve_options(lm, manifest)
    assert (found.window, found.stride, found.key_dtype) == (16, 16, "float16")
    with pytest.raises(OptionError, match="`window` is 8, but the store was built with 16; leave it out"):
        BuildOptions(window=8).resolve_options(lm, manifest)


def made_plan(lm, **changed):
    plan = BuildPlan(
        texts=["t"],
        field="text",
        glob=None,
        max_tokens=None,
        options=BuildOptions(window=8).resolve_options(lm, None),
        bos=[0],
        separator=[1],
        model="m",
        probe="p",
        tokenizer="k",
        key_tap="ffn",
        dtype="float32",
        torch="2",
        threads=4,
    )
    return dataclasses.replace(plan, **changed)


def test_a_plan_is_the_same_on_another_machine_but_not_for_another_text(lm):
    plan = made_plan(lm)
    for machine in ({"threads": 8}, {"torch": "3"}, {"probe": "q"}, {"append_to": "x"}):
        assert made_plan(lm, **machine).identity == plan.identity
    wide = BuildOptions(window=9).resolve_options(lm, None)
    for other in ({"texts": ["u"]}, {"max_tokens": 9}, {"model": "n"}, {"field": "f"}, {"options": wide}):
        assert made_plan(lm, **other).identity != plan.identity


def test_a_difference_is_narrowed_down_to_the_first_entry():
    assert difference({"a": 1, "b": 2}, {"a": 1, "b": 3}) == ("b=2", "b=3")
    assert difference({}, {"a": 1}) == ("a=None", "a=1")
    assert difference("x", "y") == ("x", "y")


def test_a_plan_without_keys_asks_for_the_same_records(lm):
    plan = made_plan(lm)
    assert "keys" not in plan.to_json()["options"]  # as in plans from before there was a choice
    bare = dataclasses.replace(plan, options=BuildOptions(window=8, keys="none").resolve_options(lm, None))
    assert bare.to_json()["options"]["keys"] == "none"
    assert bare.identity == plan.identity
    assert BuildOptions(keys="all").resolve_options(lm, None).keys is None
    assert difference(bare.to_json()["options"], plan.to_json()["options"]) == ("keys=none", "keys=None")
    with pytest.raises(OptionError, match="`keys` is 'some', expected all or none"):
        BuildOptions(keys="some")
