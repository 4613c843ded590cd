"""What robots.txt allows: the file's rules, Visit-time, and the rule that stands in for a file."""
