"""Experiments: what the paper's tables and figures show, on any store and text."""
