"""Lets tools that still call setup.py (scrapyd-deploy) build the project; all metadata is in pyproject.toml."""

from setuptools import setup

setup()
