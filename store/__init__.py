"""PostgreSQL: the half/op store. The bottom layer: every SQL statement of the project is in here or in ``spark``."""
