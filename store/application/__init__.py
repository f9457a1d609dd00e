"""What an application calls in its own SQL transactions (X2 to X4), as SQL of the store, and the rights to it."""
