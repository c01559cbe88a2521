"""The command `paceline`, also as `python -m paceline`."""

import os
import signal
import sys

from paceline.core.errors import ExitCode


def main() -> None:
    """Run the command line; Ctrl-C during imports gives no traceback."""
    try:
        from paceline.cli import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))  # while the interpreter shuts down
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
