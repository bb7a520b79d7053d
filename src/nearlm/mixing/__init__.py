"""How memory and LM are mixed: the equations, tuned settings, traces, tuning, adaptors, n-gram tables."""
