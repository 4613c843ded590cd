"""Site status (paper 002): health rules, and packets from other crawlers."""
