"""Gates that nobody trained, and what they make of a text by the equations alone."""

import numpy as np
import torch

from nearlm.mixing import gate_learning
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.gate_learning import GateInfo, HeldOut, TrainingInfo
from nearlm.mixing.gate_network import GateNetwork, Inputs, scalar_columns
from nearlm.mixing.gate_training import thresholds_of
from nearlm.mixing.mixture_features import Known
from nearlm.mixing.ngrams import NGrams
from nearlm.mixing.trained import search_hash
from nearlm.search.retriever import Retriever
from nearlm.store import SearchSettings

WINDOW = 48


PROMPTS = ["the licence grants", "any person who uses copies of the software", "free"]


CLOSE = {"rtol": 1e-5, "atol": 1e-6}


SETTINGS = {"k": 32, "knn_temperature": 3.0, "nprobe": None, "distances": "index"}


def untrained(store, lm, weight, features, every=3):
    """A gate whose random λ depends strongly on its features, with thresholds from some of the store's own contexts."""
    torch.manual_seed(5)
    network, shape = GateNetwork(Inputs(store.dim, features)), Inputs(store.dim, features)
    rng, places = np.random.default_rng(0), np.arange(0, len(store), every)
    contexts = Contexts.of_text(store.tokens[:], store.document_bounds, store.origin.take(places))
    counts = NGrams.open(store).look_up(contexts.last(4))
    scalars = scalar_columns(shape, len(places), rng.uniform(size=len(places)), rng.uniform(size=len(places)), counts)
    keys = store.keys.take(places)
    network.fit(torch.from_numpy(keys), torch.from_numpy(scalars))
    with torch.no_grad():
        for part in network.mlp:
            if isinstance(part, torch.nn.Linear):
                part.weight.mul_(3)
    log_lam = network.log_weights(keys, scalars)[:, 0]
    held_out = HeldOut(900, "documents", 12.0, 10.0, 0.1, 0.01, [9.0] * 101, [0.0] * 101, [9.0] * 101)
    info = GateInfo(
        format=gate_learning.FORMAT,
        shape=shape,
        store=store.checksum,
        mixture="",
        search=search_hash(Retriever(store)),
        model=lm.fingerprint(),
        text="",
        settings=SearchSettings(index="default", **SETTINGS),
        training=TrainingInfo("likelihood", 0, 5e-4, 128, 1, 5, 0.05, 9000),
        tried={},
        files={},
        weight=weight,
        lam=0.4,
        thresholds=thresholds_of(log_lam)[1:-1].tolist(),
        held_out=held_out,
    )
    return network, info


def by_hand(lm, store, gate, ids, skip):
    """λ and log p of every next token of a sequence from one full forward pass and the equations."""
    seen = []
    hook = lm.tap.module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        log_lm = lm.model(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()
    hook.remove()
    queries, p_lm = seen[0][0].numpy(), np.exp(log_lm)
    contexts = Contexts.of_text(np.asarray(ids), np.array([0, len(ids) + 1]), np.arange(1, len(ids) + 1))
    known = Known(p_lm.max(1), -(p_lm * log_lm).sum(1), p_lm.argmax(1), contexts)
    log_lam = gate.log_weights(queries, known)[:, 0]
    lam = np.where(log_lam >= gate.threshold_at(skip), np.exp(log_lam), 0.0)
    keys, values = store.keys[:].astype(np.float64), store.values[:]
    p = p_lm.copy()
    for row, query in enumerate(queries):
        if lam[row]:
            d = ((keys - query) ** 2).sum(1)
            near = np.argsort(d, kind="stable")[: SETTINGS["k"]]
            mass = np.exp(-(d[near] - d[near][0]) / SETTINGS["knn_temperature"])
            p[row] *= 1 - lam[row]
            np.add.at(p[row], values[near], lam[row] * mass / mass.sum())
    return lam, np.log(p)
