"""robots.txt: rules, delays and Visit-time, and the default if it cannot be fetched."""
