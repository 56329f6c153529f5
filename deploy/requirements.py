"""Print the requirements of the named extras for pip: `python requirements.py gateway`, next to a pyproject.toml."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
for name in sys.argv[1:]:
    if name not in extras:
        sys.exit(f"requirements.py: extra: got {name!r}, allowed: {', '.join(extras)}")
print(*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name]), sep="\n")
