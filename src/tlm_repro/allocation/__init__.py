"""How a fixed MLP budget is spread over depth: shapes, exact rounding, layer widths. Numbers only, no torch."""
