"""The command line: `warprun`, or `python -m warprun`. Signals are watched before anything else is imported."""

from warprun.cli.streams import open_streams
from warprun.runs import signals


def main() -> None:
    """Run the command line and exit with its code."""
    open_streams()
    signals.watch()
    from warprun.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
