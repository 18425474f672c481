"""What the driver decides while a run goes on, one kind of decision per file."""
