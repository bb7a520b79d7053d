"""Results on disk."""

from dataclasses import replace
from statistics import median

import pytest

import measured
from nearlm.base import StoreError, files
from nearlm.paper.results import ALL, NLM, VANILLA, MainTable, Results


def test_a_part_is_done_when_its_table_is_written_too(tmp_path, monkeypatch):
    results, real = Results(tmp_path), files.write_bytes

    def killed(path, data):
        real(path, data)
        if path.suffix == ".csv":
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        results.save("k", {"points": []}, [{"k": 1}])
    assert results.load("k") is None


def cut(curves):
    return {name: values[:-1] for name, values in curves.items()}


@pytest.mark.parametrize(
    ("part", "change", "found"),
    [
        ("main", lambda main: main["rows"][0].update(tokens_per_second=0.0), "0.0 tokens/s"),
        ("pca", lambda pca: pca.update(over="x"), "a sweep over 'x'"),
        ("k", lambda k: k["points"][1]["setup"]["search"].update(lam=None), "points that were not tuned"),
        ("adaptive", lambda adaptive: adaptive.update(objectives=cut(adaptive["objectives"])), "curves that were cut"),
        ("adaptive", lambda adaptive: adaptive["curves"].clear(), "no curves of a gate"),
        ("choice", lambda choice: choice["points"][0].update(keep=3.0), "keep is 3.0"),
    ],
)
def test_results_that_nothing_can_have_measured_are_refused(tmp_path, part, change, found):
    results = Results(tmp_path)
    results.save(part, getattr(measured.parts(), part))
    path = tmp_path / f"{part}.json"
    known = files.read_json(path)
    change(known)
    files.write_json(path, known)
    with pytest.raises(StoreError, match=rf"{part}\.json is not as .*{found}"):
        results.load(part)


def test_a_row_that_is_missing_is_named():
    table = MainTable(1, measured.main_table().rows[:1])
    assert table.row("NLM").name == "NLM"
    with pytest.raises(StoreError, match="no row 'kNN-LM', only 'NLM'"):
        table.speedup(table.rows[0], VANILLA)


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ([98.0, 101.0, 103.0], "≈ 100 %"),
        ([96.0, 98.5, 101.0], "≈ 100 %"),
        ([101.0, 101.0, 101.0], "≈ 100 %"),  # a memory does not make the LM faster
        ([97.6, 97.8, 98.0], "98 %"),
        ([90.0, 90.0, 101.0], "90 %"),  # one round that was disturbed
    ],
)
def test_a_speed_is_given_as_exactly_as_its_rounds_agree(speeds, expected):
    found = measured.main_table()
    rows = [replace(row, tokens_per_second=median(speeds)) if row.name == ALL else row for row in found.rows]
    rows[0] = replace(rows[0], tokens_per_second=100.0)
    table = MainTable(found.tokens, rows, {NLM: [100.0] * 3, ALL: speeds})
    assert table.nlm_share(table.row(ALL)).replace("\xa0", " ") == expected
    assert table.nlm_share(table.row(NLM)).replace("\xa0", " ") == "100 %"
    assert expected in table.table().replace("\xa0", " ")
