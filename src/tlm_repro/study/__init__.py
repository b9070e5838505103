"""The study: axes, grid of runs, views. No torch here."""
