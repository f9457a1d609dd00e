"""The command line, one module a command. Heavy imports are in the functions: an administrator does not wait for them."""
