"""The CPU backend: lower a traced model, run it in C++."""
