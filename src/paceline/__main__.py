"""The command `paceline`, also as `python -m paceline`."""

import os
import sys

from paceline.core.errors import ExitCode
from paceline.launching.agent import started_ahead


def main() -> None:
    """Run the command line; where it will start ranks, torch is imported for them meanwhile."""
    try:
        with started_ahead(sys.argv[1:], os.environ):
            from paceline.cli import main as run_command_line

            run_command_line()
    except KeyboardInterrupt:
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
