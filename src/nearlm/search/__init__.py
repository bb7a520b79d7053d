"""Indexes over a store's keys: kinds, building, the list scan, exact re-scoring, and the retriever."""
