"""The only room that knows processes: workers and their supervisor."""
