"""The service as a process, and clients other people wrote."""
