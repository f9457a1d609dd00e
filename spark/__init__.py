"""Reconciliation with PySpark: reads the store's tables, and nothing imports it but the command line."""
