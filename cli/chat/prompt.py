"""Questions typed at a terminal: line editing, history across restarts, several lines, any length."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output


def history_file() -> Path:
    """Return $XDG_STATE_HOME/orcastream/chat_history (default base: ~/.local/state), created with mode 600 if missing.

    Raises OSError if it cannot be written, RuntimeError if there is no home directory.
    """
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    path = base / "orcastream" / "chat_history"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    with path.open("ab"):
        return path


class _ForgivingHistory(FileHistory):
    def load_history_strings(self) -> Iterable[str]:
        """Return the file's entries; none if it can no longer be read."""
        try:
            return super().load_history_strings()
        except OSError:
            return ()

    def store_string(self, string: str) -> None:
        """Store a question, ignoring errors: the disk may be full by now."""
        with suppress(OSError):
            super().store_string(string)


class Prompt:
    """An input line: Enter sends, Alt-Enter or Ctrl-J starts a new line; pasted text is always one question.

    It reads single keys instead of the terminal's own lines, which are limited to 4,095 bytes.
    """

    def __init__(self, history: Path | None, commands: Mapping[str, str]) -> None:
        """`commands` maps each command that Tab completes to its description. Without `history`, none is stored."""
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            key_bindings=_keys(),
            history=_ForgivingHistory(str(history)) if history else InMemoryHistory(),
            completer=WordCompleter(list(commands), meta_dict=commands, sentence=True),
            complete_while_typing=False,
            enable_history_search=True,
            output=create_output(always_prefer_tty=True),  # standard output may be a file
        )

    async def read(self) -> str:
        """Return the next question. Raises EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C."""
        return (await self._session.prompt_async()).strip("\n")

    @property
    def typed(self) -> str:
        """The text in the buffer when reading ended."""
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
