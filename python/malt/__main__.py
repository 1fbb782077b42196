"""`python -m malt` is the command `malt`."""

import sys

from malt._cli import main

sys.exit(main())
