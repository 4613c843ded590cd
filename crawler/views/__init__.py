"""What a person sees of a crawl: figures, pictures, the terminal's view, the dashboard. Nothing here changes one."""
