"""The allocation of a fixed MLP budget over depth: curves, exact rounding, layer widths. Numbers only, no torch."""
