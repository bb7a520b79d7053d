"""A store → a smaller store: narrower keys (PCA) or fewer records (random, k-means, merging, ranking)."""
