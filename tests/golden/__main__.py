"""Rewrite the golden file: ``make golden``. Explain the change under *Changed results*."""

from tests.golden.selections import GOLDEN_FILE, recorded

if __name__ == "__main__":
    GOLDEN_FILE.write_text(recorded(), encoding="utf-8")
