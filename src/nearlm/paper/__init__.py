"""The paper's experiments: sweeps, ablations, main table, `reproduce`, the demo, the page. Only the CLI uses it."""
