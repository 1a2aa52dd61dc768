"""`python -m redraft` is the `redraft` command."""

from redraft.cli.main import main

main()
