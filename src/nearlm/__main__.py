"""`python -m nearlm`."""

from nearlm.cli import main

main()
