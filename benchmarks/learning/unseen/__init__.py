"""The suite of tasks that no family has defaults for: environments of our own design, and the table of all tasks."""
