"""What an operator does: look at sites and give orders, repair the queue, find what is wrong."""
