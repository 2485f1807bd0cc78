"""``python -m einmal``: the same as the command ``einmal``."""

from einmal_command import main

if __name__ == "__main__":
    main()
