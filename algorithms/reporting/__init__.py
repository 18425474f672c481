"""What a run tells: the snapshot of its numbers, its events, and the sinks that write them."""
