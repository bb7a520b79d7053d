"""A store → a smaller store: narrower keys (PCA) or fewer records (random, k-means, merging, ranking)."""

from nearlm.shrink.neighbors import verify_neighbors
from nearlm.shrink.pruning import METHODS, prune_store
from nearlm.shrink.reduction import reduce_store
