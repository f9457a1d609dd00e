"""Addresses have a name, a kind, and consumer groups that get their messages."""
