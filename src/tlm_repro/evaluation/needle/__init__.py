"""Needle in a haystack: samples, answers and scores."""
