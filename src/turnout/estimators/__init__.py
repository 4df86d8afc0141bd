"""What selectors learn with: vectorised over clients, plain arrays in and out."""
