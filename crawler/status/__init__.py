"""Which site is ill (paper 002): a site's health, and the packets of other crawlers."""
