"""Queue and tables agree: where they differ, what was lost, which finished sites are opened again."""
