"""Entry point of the command ``turnout`` and of ``python -m turnout``."""

from __future__ import annotations

import sys
import warnings

from turnout.core.errors import in_words


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        from turnout.cli import app
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.exit(f"The command line needs {error.name}: pip install 'turnout[cli]'")
    warnings.formatwarning = in_words
    app()


if __name__ == "__main__":
    main()
