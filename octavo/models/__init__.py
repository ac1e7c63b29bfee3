"""One architecture family per file, and a table of them."""
