"""``python -m policyrisk.cli`` is the command ``policyrisk``."""

import os
import sys

from policyrisk.cli.entry import main

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[
            0
        ]  # python -m puts the current folder first: a plotly.py in it would be taken for Plotly
    main()
