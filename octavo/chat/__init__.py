"""Chats, whoever asks: what a conversation makes of the prompt, the form of the answer, and how its text is read."""
