"""Datasets, and how they are divided among clients."""
