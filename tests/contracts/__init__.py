"""One suite per plug point, run over everything that is registered and over a stranger's (outsider.py)."""
