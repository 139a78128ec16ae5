"""The program: `tensorfold`, or `python -m tensorfold`."""

import sys

from tensorfold.interrupts import interrupts_exit


def main() -> int:
    """Run the command line. Ctrl-C ends it from the first import on; the exit status."""
    with interrupts_exit():
        from tensorfold import cli

        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
