"""Real runs whose processes are killed, stopped or frozen: recovery, learning and shutdown."""
