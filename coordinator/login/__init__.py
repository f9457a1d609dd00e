"""Login runs the SASL mechanisms, and queries the store for them (rule S1)."""
