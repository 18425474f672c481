"""The suite of tasks that no default was tuned on: environments of our own design, and the table of all tasks."""
