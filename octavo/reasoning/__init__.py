"""Models that reason before they answer: where the reasoning is in their text."""
