"""Search a store with an index of one's own kind, and with FAISS itself.

Usage: python examples/own_index.py mem
"""

import sys

import numpy as np

import nearlm

store = nearlm.Datastore.open(sys.argv[1])
print(nearlm.build_index(store, "HNSW16", name="graph"))  # any factory string of FAISS, beside the index that is there

queries = store.keys[:4].astype(np.float32)
near = nearlm.Retriever(store, "graph").search(queries, 3)
for row in range(len(queries)):
    print(row, near.ids[row].tolist(), [store.tokenizer.decode([token]) for token in near.tokens[row]])

index = nearlm.faiss_index(store, "graph")  # the FAISS index, for everything else that FAISS can do
distances, ids = index.search(queries, 3)
assert np.array_equal(ids, near.ids)
