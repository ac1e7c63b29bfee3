"""Structured output: from schemas and grammars to the tokens that may come next."""
