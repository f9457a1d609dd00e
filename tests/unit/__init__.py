"""Pure: no PostgreSQL, no service, no network."""
