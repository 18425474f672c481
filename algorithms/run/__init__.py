"""One run: its resources, its driver, and how it starts and ends."""
