"""Processes of a service are the supervisor and its children, with their sockets and logs."""
