"""`plan` and `serve-index` as they are typed."""

import json

import pytest

from nearlm.cli.app import spell_out


def test_a_plan_of_a_billion_records(nearlm):
    code, out, err = nearlm("plan", "--records", "1e9", "--dim", "4096", "--ram", "64GB", "--workers", "8")
    assert (code, err) == (0, "")
    assert (
        "1,000,000,000 of 4096 dimensions" in out
        and "index STORE --ray; nearlm serve-index STORE --shards 3" in out
        and "extrapolated" in out
    )
    told = json.loads(nearlm("plan", "--records", "1e9", "--dim", "4096", "--json")[1])
    assert told["index_bytes"] > 108 * 10**9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "--records", "lots", "--dim", "8"], "--records is 'lots', expected a number like 1e9"),
        (["plan", "--records", "1e6"], "--dim is not given; name it, or a --model"),
        (["serve-index", "nosuch", "--ray", "nosuch"], "no place for 'nosuch'"),
        (
            ["eval", "nosuch", "x", "--allow-partial"],
            "--allow-partial is for an index that is served on Ray",
        ),
        (
            ["build", "x", "--model", "m", "--out", "y", "--gpus-per-worker", "1"],
            "--gpus-per-worker is for work",
        ),
    ],
)
def test_mistakes_are_one_line(nearlm, arguments, said):
    code, out, err = nearlm(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--ray"], ["--ray=auto"]),
        (["--ray", "docs/"], ["--ray=auto", "docs/"]),
        (["--ray", "--workers", "2"], ["--ray=auto", "--workers", "2"]),
        (["--ray", "head:6379", "x"], ["--ray", "head:6379", "x"]),
        (["--ray", "local"], ["--ray", "local"]),
        (["--ray=head:1"], ["--ray=head:1"]),
    ],
)
def test_the_address_may_be_left_out(typed, meant):
    assert list(spell_out(typed)) == meant
