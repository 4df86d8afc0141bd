"""An app as Flower's quickstart has it, before and after; the how-to shows the difference."""
