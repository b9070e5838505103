"""Fast weights: a memory that learns along the sequence."""
