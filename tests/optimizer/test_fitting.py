"""`fit`: a ready memory from a folder, what it holds out, more text, going on after a kill, small texts, refusals."""

import pytest
from fits import stored_names, write_documents

from calls import evaluate, load_knnlm
from nearlm.base import Job, Reporter
from nearlm.base.errors import OptionError, StoreError, TextError
from nearlm.optimizer.fit_plan import FitOptions
from nearlm.optimizer.fit_record import read_fit
from nearlm.optimizer.fitting import fit
from nearlm.store import BuildOptions
from nearlm.store.builder import build
from nearlm.store.datastore import Datastore
from nearlm.store.layout import Layout
from nearlm.text import TEST, TRAIN, VALID, TextSource, passages
from tiny import make_text

pytestmark = [pytest.mark.usefixtures("few_ways"), pytest.mark.timeout(300)]
SHORT = BuildOptions(window=64)
ADD = FitOptions(all=True)


def parts_by_name(out, docs) -> dict[str, str]:
    """Return the part of every document of a folder, by its name."""
    _, split = read_fit(Layout(out).fit)
    found = {one.name: split.parts.get(one.key) for one in passages(TextSource((str(docs),)).open(), split.block)}
    return {name: part for name, part in found.items() if part}


def names(out, docs, *parts: str) -> set[str]:
    return {name for name, part in parts_by_name(out, docs).items() if part in parts}


def test_a_folder_becomes_a_memory_and_more_text_only_adds_to_it(lm, tmp_path, capfd, monkeypatch):
    docs, out = write_documents(tmp_path / "docs", range(40)), tmp_path / "mem"
    found = fit(lm, str(docs), out, build_options=SHORT)
    store = Datastore.open(out)
    held = names(out, docs, VALID, TEST)
    assert stored_names(store) == names(out, docs, TRAIN) and not stored_names(store) & held
    assert not (tmp_path / "mem.fit").exists() and str(tmp_path) not in Layout(out).fit.description.read_text()
    unseen = [str(docs / name.partition("/")[2]) for name in sorted(names(out, docs, TEST))]
    measured = evaluate(load_knnlm(out, lm), unseen)
    assert found.unseen.memory.perplexity == pytest.approx(measured.perplexity, rel=1e-4)
    assert found.unseen.memory.bits_per_byte == pytest.approx(measured.bits_per_byte, rel=1e-4)
    assert found.unseen.alone.perplexity == pytest.approx(measured.nlm_perplexity, rel=1e-4)
    assert found.unseen.documents == len(unseen) and found.records == len(store) and found.continuation.truth

    with monkeypatch.context() as patched:
        patched.setattr("nearlm.optimizer.fitting.measure_speed", lambda *_: pytest.fail("done again"))
        assert fit(None, str(docs), out, build_options=SHORT, reporter=Reporter()) == found
    assert "complete already" in capfd.readouterr().err

    write_documents(docs, range(40, 50))
    twin = sorted(names(out, docs, TEST))[0].partition("/")[2]
    (docs / "twin.txt").write_text((docs / twin).read_text() + "\nAnd more.")
    more = fit(None, str(docs), out, build_options=SHORT, reporter=Reporter())
    assert "nearlm tune" not in capfd.readouterr().err  # it does that itself
    grown = Datastore.open(out)
    assert grown.manifest.segments[0].tokens == store.manifest.tokens
    assert len(grown.manifest.segments) == 2 and more.records == len(grown) > len(store)
    assert names(out, docs, VALID, TEST) >= held and parts_by_name(out, docs)["docs/twin.txt"] == TEST
    assert stored_names(grown) == names(out, docs, TRAIN)


class Killed(BaseException):
    pass


def test_a_fit_resumes_after_a_kill_at_every_step_and_ends_the_same(lm, tmp_path, monkeypatch):
    docs = write_documents(tmp_path / "docs", range(30))
    whole = fit(lm, str(docs), tmp_path / "whole", ADD, SHORT)
    note = Job.note
    seen = set()

    def kill(self, step, state):
        note(self, step, state)
        if (self.folder.name, step) not in seen:
            seen.add((self.folder.name, step))
            raise Killed

    monkeypatch.setattr(Job, "note", kill)
    out = tmp_path / "mem"
    for _ in range(60):
        try:
            found = fit(lm, str(docs), out, ADD, SHORT)
            break
        except Killed:
            continue
    assert {step for job, step in seen if job == "fit.job"} >= {"speed", "documents", "chosen", "measured"}
    assert (found.records, found.chosen.partition(",")[0]) == (whole.records, whole.chosen.partition(",")[0])
    assert found.unseen.alone.perplexity == pytest.approx(whole.unseen.alone.perplexity)
    assert found.unseen.memory.perplexity == pytest.approx(whole.unseen.memory.perplexity, rel=0.05)
    assert not (tmp_path / "mem.fit").exists() and load_knnlm(out, lm).memory is not None


def test_what_was_held_out_is_added_in_the_end_and_mixed_as_before(lm, tmp_path):
    docs, out = write_documents(tmp_path / "docs", range(30)), tmp_path / "mem"
    found = fit(lm, str(docs), out, ADD, SHORT)
    store = Datastore.open(out)
    assert len(stored_names(store)) == 30 and found.unseen is not None and "added" in " ".join(found.notes)
    assert set(parts_by_name(out, docs).values()) == {TRAIN}
    knnlm = load_knnlm(out, lm)
    some = evaluate(knnlm, str(docs / "3.txt"))
    assert some.perplexity < some.nlm_perplexity  # it knows the text now
    assert fit(None, str(docs), out, ADD, SHORT) == found


@pytest.mark.parametrize(("files", "words", "cut"), [(10, 150, False), (1, 3000, True), (2, 1500, True)])
def test_small_texts_hold_out_what_they_can(lm, tmp_path, files, words, cut):
    docs, out = write_documents(tmp_path / "docs", range(files), words), tmp_path / "mem"
    found = fit(lm, str(docs), out, build_options=SHORT)
    assert any("cut at headings" in note for note in found.notes) == cut
    assert found.unseen is not None and found.unseen.tokens > 20 and load_knnlm(out, lm).memory is not None
    assert stored_names(Datastore.open(out)) == names(out, docs, TRAIN)
    if files == 10:
        assert any("one λ for all tokens" in note for note in found.notes)


def test_a_text_too_small_to_hold_any_out_is_stored_and_this_is_said(lm, tmp_path):
    (tmp_path / "a.txt").write_text("the licence grants rights to any person")
    with pytest.warns(UserWarning, match="not tuned"):
        found = fit(lm, str(tmp_path / "a.txt"), tmp_path / "mem")
        load_knnlm(tmp_path / "mem", lm)
    said = " ".join(found.notes)
    assert "nothing could be tuned" in said and "nothing could be measured" in said and found.unseen is None


def test_texts_of_ones_own_a_limit_and_a_budget(lm, tmp_path, small):
    docs, out = write_documents(tmp_path / "docs", range(30)), tmp_path / "mem"
    valid = write_documents(tmp_path / "valid", range(50, 60), 40)
    test = write_documents(tmp_path / "test", range(60, 63), 40)
    text = TextSource((str(docs),), max_tokens=3000)
    how, within = {"valid": str(valid), "test": str(test)}, FitOptions(budget=5.0)
    found = fit(lm, text, out, within, SHORT, **how)
    assert found.test_documents == 3 and found.left_documents > 5 and 1500 < found.records < 4000
    assert Datastore.open(out).indexes == ["default"]
    left = found.left_documents
    assert fit(lm, text, out, within, SHORT, **how) == found  # though documents are left
    again = fit(lm, TextSource((str(docs),), max_tokens=5000), out, within, SHORT, **how)
    assert found.records < again.records < 6000 and again.left_documents < left


def test_minutes_limit_the_work_and_it_is_said_before(lm, tmp_path, capfd):
    docs = write_documents(tmp_path / "docs", range(20))
    found = fit(lm, str(docs), tmp_path / "mem", FitOptions(minutes=0.001), SHORT, reporter=Reporter())
    said = capfd.readouterr().err
    assert found.left_documents and f"{found.left_documents:,} left out" in said and "tokens/s: about" in said


def test_what_will_not_do_is_refused_before_the_work(lm, tmp_path, monkeypatch):
    docs, out = write_documents(tmp_path / "docs", range(4)), tmp_path / "mem"
    with pytest.raises(TextError, match="only once"):
        fit(lm, "-", out)
    with pytest.raises(OptionError, match="`minutes` is 0"):
        FitOptions(minutes=0)
    with pytest.raises(OptionError, match="two rules"):
        FitOptions(overhead=0.1, budget=0.1)
    with pytest.raises(OptionError, match="`keys` is none"):
        fit(lm, str(docs), out, build_options=BuildOptions(keys="none"))
    with pytest.raises(OptionError, match="no model"):
        fit(None, str(docs), out)
    (tmp_path / "empty.txt").write_text(" ")
    with pytest.raises(TextError, match="no document"):
        fit(lm, str(tmp_path / "empty.txt"), tmp_path / "other")
    build(lm, str(docs), tmp_path / "built", SHORT)
    with pytest.raises(StoreError, match="not made by"):
        fit(lm, str(docs), tmp_path / "built")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").touch()
    with pytest.raises(StoreError, match=r"letter\.txt"):
        fit(lm, str(docs), tmp_path / "foreign")


def test_an_unfinished_fit_is_not_mistaken_for_another_and_can_be_thrown_away(lm, tmp_path, monkeypatch):
    docs, out = write_documents(tmp_path / "docs", range(12)), tmp_path / "mem"
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("nearlm.optimizer.fitting.make_memory", lambda *_: (_ for _ in ()).throw(Killed))
        fit(lm, str(docs), out, build_options=SHORT)
    with pytest.raises(StoreError, match=r"begun with another overhead \(0.02, now 0.5\)"):
        fit(lm, str(docs), out, FitOptions(overhead=0.5), SHORT)
    (docs / "new.txt").write_text(make_text(100, seed=99))
    found = fit(lm, str(docs), out, FitOptions(overhead=0.5), SHORT, restart=True)
    assert found.unseen is not None and "docs/new.txt" in parts_by_name(out, docs)
