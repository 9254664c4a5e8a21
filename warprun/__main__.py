"""`python -m warprun`: the same as `warprun`."""

from warprun.cli.main import main

if __name__ == "__main__":
    main()
