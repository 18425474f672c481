"""Does it learn: the table of tasks with their bars, the suite that no default was tuned on, and another framework."""
