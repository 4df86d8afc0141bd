"""A Flower app on volatile clients, chosen by turnout."""
