"""Makes `python -m malt` the command `malt`."""

import sys

from malt._commands.main import main

sys.exit(main())
