"""The command line: one module per command, tables by rich, ``--json`` everywhere.

Exit codes: 0 done, 1 done and the answer is no (a check failed), 2 bad input.
"""

from turnout.cli.app import app

__all__ = ["app"]
