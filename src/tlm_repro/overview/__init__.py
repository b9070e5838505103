"""What a configuration costs, and how far its runs are."""
