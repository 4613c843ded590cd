"""Compares queue and tables, and reopens finished sites."""
