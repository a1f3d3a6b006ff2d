"""The command line, a file per command. May import every other layer, inside the commands: help must not wait."""
