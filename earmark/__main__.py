"""``python -m earmark``: the same as the program ``earmark``."""

import sys

from earmark.main import main

sys.exit(main())
