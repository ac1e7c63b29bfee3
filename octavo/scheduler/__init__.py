"""Who runs in a step, and how many tokens each."""
