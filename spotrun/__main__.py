"""`python -m spotrun` is `spotrun`."""

from spotrun.cli.app import main

if __name__ == "__main__":
    main()
