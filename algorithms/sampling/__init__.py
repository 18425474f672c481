"""One actor's work, without processes: stepping environments into blocks."""
