"""What becomes of a run whose workers, or which itself, are killed, stopped or frozen."""
