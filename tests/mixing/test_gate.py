"""A gate on disk: kept whole, refused where it does not fit, and the gate it opens."""

import json
from dataclasses import replace

import numpy as np
import pytest

from nearlm.base import files
from nearlm.base.errors import OptionError, StoreError
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.gate import Gate, gate_files
from nearlm.mixing.mixture_features import Known
from nearlm.mixing.network_files import save_trained
from nearlm.search.retriever import Retriever
from nearlm.store import SearchSettings


def test_a_gate_is_kept_whole(lm, tuned_store, valid_folder, gate):
    again = Gate.load(tuned_store)
    keys, ones = np.random.default_rng(0).normal(size=(9, 32)), np.ones(9)
    contexts = Contexts.of_text(tuned_store.tokens[:36], np.array([0, 36]), np.arange(4, 40, 4))
    known = Known(ones, ones, np.ones(9, np.int32), contexts)
    np.testing.assert_array_equal(again.log_weights(keys, known), gate.log_weights(keys, known))
    text = gate_files(tuned_store, "default").description.read_text()
    assert str(tuned_store.path) not in text and json.loads(text)["settings"]["knn_temperature"] == 3.0
    assert "random" in gate.table() and not list(gate_files(tuned_store, "default").folder.glob("*.job"))


def test_auto_takes_the_largest_share_within_the_budget(gate, tuned_store):
    curve = (9.9 + 0.02 * np.arange(101)).tolist()
    held = replace(gate.info.held_out, tokens=500, constant=10.0, curve=curve, errors=[0.0] * 101)

    def judged(**changed):
        verdict = replace(gate.info, held_out=replace(held, **changed))
        return Gate(gate.network, verdict, gate.settings, gate.looked)

    one = judged()
    assert one.best_skip(0.105) == pytest.approx(0.1) and one.at("auto").skip == pytest.approx(0.1)
    assert one.at("auto", 0.0).skip == pytest.approx(0.05)
    assert one.at("auto", 100).skip == 1.0
    unsure = judged(errors=[0.002] * 101)  # twice that of 10 is two more percent
    assert unsure.at("auto", 0.105).skip == pytest.approx(0.08)
    assert judged(tokens=499).at("auto", 100).skip == 0.0
    assert judged(curve=[20.0] * 101).at("auto").skip == 0.0


def test_what_does_not_fit_is_refused(lm, tuned_store, gate):
    fits = Retriever(tuned_store, nprobe=8)
    gate.check(fits, SearchSettings(knn_temperature=3.0, k=32), lm.fingerprint())
    cases = [
        ((Retriever(tuned_store, "flat"), 3.0, 32), "index 'default'"),
        ((Retriever(tuned_store, nprobe=4), 3.0, 32), "nprobe=8, here it is 4"),
        ((Retriever(tuned_store, nprobe=8, distances="store"), 3.0, 32), "distances=index, here it is store"),
        ((fits, 1.0, 32), "knn_temperature=3.0, here it is 1.0"),
        ((fits, 3.0, 64), "k=32, here it is 64"),
    ]
    for (retriever, temperature, k), message in cases:
        with pytest.raises(OptionError, match=message):
            gate.check(retriever, SearchSettings(knn_temperature=temperature, k=k), lm.fingerprint())
    with pytest.raises(OptionError, match="another model"):
        gate.check(fits, gate.settings, "0" * 64)
    changed = Gate(gate.network, replace(gate.info, search="other"), gate.settings, gate.looked)
    with pytest.raises(OptionError, match="earlier index"):
        changed.check(fits, gate.settings, lm.fingerprint())


def test_a_damaged_foreign_or_stale_gate_is_refused(lm, tuned_store, gate, tmp_path):
    place = gate_files(tuned_store, "copy")
    folder = place.folder
    save_trained(place, gate.network, gate.info)
    Gate.load(tuned_store, "copy")
    path = folder / "gate.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        Gate.load(tuned_store, "copy")
    for state in (None, replace(gate.info.state, lineage="other"), replace(gate.info.state, segments=0)):
        save_trained(place, gate.network, replace(gate.info, store="other", state=state))
        with pytest.raises(StoreError, match="another state"):
            Gate.load(tuned_store, "copy")
    described = json.loads((folder / "gate.json").read_text())
    files.write_stamped(folder / "gate.json", {**described, "format": 99})
    with pytest.raises(StoreError, match="format 99"):
        Gate.load(tuned_store, "copy")
    with pytest.raises(StoreError, match="it has"):
        Gate.load(tuned_store, "missing")
    with pytest.raises(StoreError, match="nearlm tune"):
        Gate.train(tuned_store, "nowhere", lm, index="flat")


def test_a_gate_has_no_files_but_its_weights(tuned_store, gate):
    place = gate_files(tuned_store, "named")
    save_trained(place, gate.network, gate.info)
    described = files.read_json(place.description)
    for listed in ({}, {"../../manifest.json": {"bytes": 1, "sha256": ""}}):
        files.write_stamped(place.description, {**described, "files": listed})
        with pytest.raises(StoreError, match=r"gate\.json names a file .*, which it cannot have"):
            Gate.load(tuned_store, "named")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 64, (2).to_bytes(8, "little") + b"{}"])
def test_weights_that_cannot_be_read_are_refused(content, tuned_store, gate):
    place = gate_files(tuned_store, "broken")
    save_trained(place, gate.network, gate.info)
    place.weights.write_bytes(content)
    described = files.read_json(place.description)
    stated = {"bytes": len(content), "sha256": files.checksum(place.weights)}
    files.write_stamped(place.description, {**described, "files": {place.weights.name: stated}})
    with pytest.raises(StoreError, match=r"gate\.safetensors is not as .*; remove .* and train the gate again"):
        Gate.load(tuned_store, "broken")


def test_a_gate_of_other_contexts_is_refused_before_its_network_is_made(tuned_store, gate):
    place = gate_files(tuned_store, "huge")
    for change in ({"shape": {"dim": 10**12}}, {"thresholds": []}):
        save_trained(place, gate.network, gate.info)
        files.write_stamped(place.description, {**files.read_json(place.description), **change})
        with pytest.raises(StoreError, match=r"gate\.json describes no gate of this store"):
            Gate.load(tuned_store, "huge")


def test_nonsense_shares_are_refused(gate):
    for skip, budget in ((1.5, None), (-0.1, None), ("some", None), (float("nan"), None), ("auto", -1.0), (0.5, 0.1)):
        with pytest.raises(OptionError):
            gate.at(skip, budget)
