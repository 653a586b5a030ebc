"""``python -m fastrec``: the command, if its script is not on the path."""

from fastrec.cli import main

main()
