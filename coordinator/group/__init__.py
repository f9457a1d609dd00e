"""A group is a consumer group of an address, with its entries, windows and consumers."""
