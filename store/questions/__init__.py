"""The questions of the running service, as typed functions: no caller packs octets."""
