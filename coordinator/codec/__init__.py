"""The codec evaluates selectors over stored messages."""
