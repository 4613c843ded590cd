"""The coordinator process: stores the results stream in the database."""
