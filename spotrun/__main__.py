"""Runs the command line for `python -m spotrun`, just as the command `spotrun` does."""

from spotrun.cli.app import main

if __name__ == "__main__":
    main()
