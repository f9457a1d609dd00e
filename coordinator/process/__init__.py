"""The processes of a service: the supervisor, its children, their sockets and logs."""
