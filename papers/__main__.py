"""``python -m papers``."""

import sys

from papers.command import main

if __name__ == "__main__":  # not in the processes of --jobs
    sys.exit(main())
