"""Load any causal LM, find its key tap, and run windows → keys, log-probabilities, statistics."""
