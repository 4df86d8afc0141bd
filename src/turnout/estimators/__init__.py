"""What selectors learn with. All work on all clients at once, with plain arrays in and out."""
