"""Parses which adapters a worker serves, and where they are."""

from pathlib import Path

from orcastream.schemas.limits import NAME_PATTERN, NAME_RULE

_CONFIG_FILE = "adapter_config.json"


def adapter_folders(setting: str, model: str) -> dict[str, Path]:
    """Return the folders in `setting` by name: `name=folder,name=folder`, or one folder with a folder per adapter.

    Raises ValueError for an invalid or repeated name, the name of the served `model`, and a folder without adapters.
    """
    if not setting:
        return {}
    found = _listed(setting) if "=" in setting else _held_by(Path(setting))
    for name in found:
        if not NAME_PATTERN.fullmatch(name):
            raise ValueError(f"adapters: got the name {name!r}, allowed: {NAME_RULE}")
        if name == model:  # clients that ask for that name get the model
            raise ValueError(f"adapters: got the name {name!r}, allowed: other names than the model's")
    return found


def _listed(setting: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for part in setting.split(","):
        name, _, folder = (piece.strip() for piece in part.partition("="))
        if not name or not folder:
            raise ValueError(f"adapters: got {part!r}, allowed: name=folder, or several separated by commas")
        if name in found:
            raise ValueError(f"adapters: got {name!r} twice, allowed: each name once")
        found[name] = Path(folder)
    return found


def _held_by(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise ValueError(f"adapters: got {str(folder)!r}, allowed: an existing folder, or name=folder")
    found = {each.name: each for each in sorted(folder.iterdir()) if (each / _CONFIG_FILE).is_file()}
    if not found:
        raise ValueError(f"adapters: got {str(folder)!r}, allowed: a folder of folders that hold {_CONFIG_FILE}")
    return found
