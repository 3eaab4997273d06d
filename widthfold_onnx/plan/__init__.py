"""What becomes of every site: the decisions, and what was measured to take them."""
