"""Ways to run a traced model."""
