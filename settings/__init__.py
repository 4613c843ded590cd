"""The project's settings: base.py holds every one, local.py and cluster.py choose where things run."""
