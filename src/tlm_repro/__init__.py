"""Reproduction of "Tapered Language Models" (arXiv 2606.23670), from raw text to a verdict on every claim."""

__version__ = "0.1.0"
