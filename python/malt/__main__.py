"""`python -m malt` is the command `malt`."""

import sys

from malt._commands.main import main

sys.exit(main())
