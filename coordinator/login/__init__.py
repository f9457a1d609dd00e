"""Who comes in: the SASL mechanisms, and what is asked of the store for them (rule S1)."""
