"""The command line, one module a command. Heavy imports are in the functions: a command loads only what it uses."""
