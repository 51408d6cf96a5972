"""Runs the command `spotrun` for `python -m spotrun`."""

from spotrun.cli.app import main

if __name__ == "__main__":
    main()
