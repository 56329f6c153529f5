"""Questions typed at a terminal: edited, remembered over restarts, of several lines, of any length."""

import os
from collections.abc import Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output


def history_file() -> Path:
    """$XDG_STATE_HOME/orcastream/chat_history, by default in ~/.local/state; made, for its owner alone, if need be."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    path = base / "orcastream" / "chat_history"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return path


class Prompt:
    """Enter sends, Alt-Enter or Ctrl-J begins another line; what is pasted is one question, whatever it holds.

    The terminal hands over single keys, not its own lines, which end at 4,095 bytes.
    """

    def __init__(self, history: Path, commands: Mapping[str, str]) -> None:
        """`commands` are completed with the tab key; each has its meaning beside it."""
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            key_bindings=_keys(),
            history=FileHistory(str(history)),
            completer=WordCompleter(list(commands), meta_dict=commands, sentence=True),
            complete_while_typing=False,
            enable_history_search=True,
            output=create_output(always_prefer_tty=True),  # standard output may be a file
        )

    async def read(self) -> str:
        """The next question. Raises EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C."""
        return (await self._session.prompt_async()).strip("\n")

    @property
    def typed(self) -> str:
        """What stood there when reading ended."""
        return self._session.default_buffer.text


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _another_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
