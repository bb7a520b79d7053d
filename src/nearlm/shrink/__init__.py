"""A store → a smaller store: narrower keys (PCA) or fewer records (random, k-means, merging, ranking)."""

from nearlm.shrink.neighbors import verify_neighbors
from nearlm.shrink.options import TAKES, PruneOptions
from nearlm.shrink.pruning import prune_store
from nearlm.shrink.reduction import ReduceOptions, reduce_store
