"""What the running service asks besides the batch, as typed functions: no caller packs octets."""
