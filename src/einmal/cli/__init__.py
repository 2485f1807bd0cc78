"""The command ``einmal``. Each command imports what it needs when it runs."""
