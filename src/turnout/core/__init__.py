"""The contract and what it stands on: values, checks, selectors, randomness, names and files."""
