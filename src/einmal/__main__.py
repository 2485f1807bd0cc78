"""``python -m einmal``: the same as the command ``einmal``."""

from einmal.cli.app import main

if __name__ == "__main__":
    main()
