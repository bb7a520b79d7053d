"""The command line: every command calls one function, and takes its options from that function's own dataclasses."""

from nearlm.cli.app import app, main
