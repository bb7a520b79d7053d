"""The fastest memory within a perplexity budget."""
