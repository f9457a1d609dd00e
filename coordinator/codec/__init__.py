"""Selectors over messages, and the copies of messages that checkers get."""
