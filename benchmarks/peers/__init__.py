"""Programs that other frameworks' own Python runs, to be measured beside ours."""
