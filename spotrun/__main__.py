"""Makes `python -m spotrun` do the same as the command `spotrun`."""

from spotrun.cli.app import main

if __name__ == "__main__":
    main()
