"""The files that one stage writes and another reads: one self-checking class each."""
