"""Questions typed at a terminal: edited, remembered over restarts, of several lines, of any length."""

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
    """$XDG_STATE_HOME/orcastream/chat_history, by default in ~/.local/state; made, for its owner alone, if need be.

    OSError where it cannot be written, RuntimeError where there is no home directory.
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
        """What the file holds; nothing where it cannot be read any more."""
        try:
            return super().load_history_strings()
        except OSError:
            return ()

    def store_string(self, string: str) -> None:
        """Keep a question where it can be kept: the disk may be full by now."""
        with suppress(OSError):
            super().store_string(string)


class Prompt:
    """Enter sends, Alt-Enter or Ctrl-J begins another line; what is pasted is one question, whatever it holds.

    The terminal hands over single keys, not its own lines, which end at 4,095 bytes.
    """

    def __init__(self, history: Path | None, commands: Mapping[str, str]) -> None:
        """`commands` are completed with the tab key; each has its meaning beside it. No `history`: none is kept."""
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
