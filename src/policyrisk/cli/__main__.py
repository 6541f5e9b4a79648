"""``python -m policyrisk.cli`` is the command ``policyrisk``."""

from policyrisk.cli.entry import main

if __name__ == "__main__":
    main()
