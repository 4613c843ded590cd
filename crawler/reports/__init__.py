"""Reports over the tables: one file is one report, with `figures(engine)` and `text(figures)`."""
