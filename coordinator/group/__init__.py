"""A consumer group of an address: its entries, windows, consumers."""
