"""Which sites there are, who works on them, and in what order: seeds, the site queue, load, the hour's plan."""
