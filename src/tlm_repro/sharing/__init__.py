"""What others can pull: finished products, in trees that DVC versions."""
