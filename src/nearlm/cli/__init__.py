"""The command line: every command calls one function; torch is imported only where it is needed."""

from nearlm.cli import stores, memory, experiments  # isort: skip
from nearlm.cli.app import app, main

__all__ = ["app", "main"]
