"""The command line, one module a command. Heavy imports are in the functions: nobody waits for what is not used."""
