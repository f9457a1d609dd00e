"""HTTP is what the service answers to operators and monitoring, in a process of its own."""
