"""Scores of trained models: one module for each kind of measurement, and `suites` to run them by name."""
