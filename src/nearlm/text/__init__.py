"""Any text → documents → tokens → windows; the named corpora and their downloads."""
