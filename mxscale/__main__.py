"""`python -m mxscale`: the command line where the console script is not installed."""

import sys

from mxscale.cli.main import main

sys.exit(main())
