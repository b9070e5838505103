"""Layer novelty of any Hugging Face decoder."""
