"""The commands, one in a module, and the groups of commands: ``einmal.cli.app`` imports each when it is looked up."""
