"""``python -m fastrec.cli``: the command where its script is not on the path."""

from fastrec.cli import main

main()
