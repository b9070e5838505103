"""Sharing finished products through DVC."""
