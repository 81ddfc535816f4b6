"""``python -m uvsdk`` is the ``uvsdk`` command."""

import sys

from uvsdk.cli import main

sys.exit(main())
