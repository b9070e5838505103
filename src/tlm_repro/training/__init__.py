"""Pretraining: schedule, optimiser, checkpoints, metrics and the loop."""
