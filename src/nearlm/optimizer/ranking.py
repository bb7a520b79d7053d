"""Which tokens gain least from a search: ranks by a gate's network, each half of a text by one trained on the other."""

import numpy as np

from nearlm.base import Doubles
from nearlm.mixing import Examples, InfiniGram, Looked, Training, halves, split_rows, train_network
from nearlm.optimizer.bench import Bench


def rank_tokens(bench: Bench, searched: Doubles, skipped: Doubles, infinigram: InfiniGram) -> tuple[Doubles, float]:
    """Return the rank of every token from 0 (gains least) to 1, and what a gate takes of a token's time, in µs.

    `searched` and `skipped` are log p of the tokens with a search and without.
    """
    traced = bench.traced
    training = Training()
    inputs = training.inputs(traced.keys.shape[1], mixed=True)
    looked = Looked(None, infinigram)
    scalars = looked.all_scalars(inputs, traced.known())
    examples = Examples(traced.keys, scalars, skipped, searched)
    ranks = np.empty(len(searched))
    for train, rest in halves(bench.documents):
        split = split_rows(np.unique(bench.documents[train], return_inverse=True)[1].reshape(-1), training.seed)
        trained = train_network(inputs, examples[train], split, training.coefficients()[0], training)
        scores = trained.network.log_weights(examples.keys[rest], scalars[rest])[:, 0]
        ranks[rest] = np.argsort(np.argsort(scores, kind="stable")) / len(rest)
    return ranks, 1e6 * bench.network_seconds(trained.network, looked)
