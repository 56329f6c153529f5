"""Entry point of `python -m orcastream.engine`."""

from orcastream.engine.cli import main

raise SystemExit(main())
