"""Four ways to a store with fewer records, each with the weight of what it stands for."""
