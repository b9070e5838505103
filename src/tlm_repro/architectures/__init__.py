"""Architectures: options, closed-form costs and registry. No torch here."""
