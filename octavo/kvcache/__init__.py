"""The KV cache: blocks, what is known to lie in them, and which requests hold them."""
