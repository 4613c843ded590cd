"""Operators' commands: sites, repair, doctor."""
