"""``python -m papers``."""

import sys

from papers.command import main

sys.exit(main())
