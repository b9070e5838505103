"""Readers of corpora: one file a kind."""
