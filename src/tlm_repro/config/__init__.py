"""The configuration: typed schema, reading, checks, reference."""
