"""What a stage is asked to do: exactly what ids hash; and in `execution` how it is run, which no id hashes."""
