"""The coordinator's process: from the results stream to the tables, and what follows from what was stored."""
