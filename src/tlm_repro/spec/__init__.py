"""What one stage is asked to do: exactly what ids hash."""
