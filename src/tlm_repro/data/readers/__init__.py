"""Readers of corpora, one file for each kind."""
