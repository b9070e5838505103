"""Scores of trained models: one module a kind of measurement, `suites` to run them by name."""
