"""Needle in a haystack: tasks, haystacks, samples, answers and scores."""
