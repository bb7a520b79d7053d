"""The LM with its memory: score, explain, generate, attach, evaluate."""
