"""The study: axes and grid of runs. No torch here."""
