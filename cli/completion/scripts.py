"""The completion scripts of `orcastream` for bash, zsh and fish."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from orcastream.cli.completion.tree import Place, Word

_CASES: Final = """\
    case "$place/$word" in {paths}) place=$place/$word ;; esac
  done
  case "$place $previous" in
{values}
    *) case "$place" in
{words}
      esac ;;
  esac
"""
"""The part common to bash and zsh: the place that the words lead to, and the words allowed there."""

_BASH: Final = """\
# Completes orcastream in bash: eval "$(orcastream completion bash)"
_orcastream() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} place= word words=
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
{cases}  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _orcastream orcastream
"""

_ZSH: Final = """\
#compdef orcastream
# Completes orcastream in zsh: eval "$(orcastream completion zsh)", after compinit
_orcastream() {{
  local place= word previous=${{words[CURRENT-1]}}
  local -a found
  for word in "${{(@)words[2,CURRENT-1]}}"; do
{cases}  _describe orcastream found || _files
}}
if [[ $funcstack[1] == _orcastream ]]; then _orcastream; else compdef _orcastream orcastream; fi
"""

_FISH: Final = """\
# Completes orcastream in fish: orcastream completion fish | source
function __orcastream_at
  set -l place
  for word in (commandline -opc)[2..]
    contains -- "$place/$word" {paths}; and set place "$place/$word"
  end
  test "$place" = "$argv[1]"
end
complete -c orcastream -n 'not __orcastream_at ""; and not __orcastream_at /completion' -F
complete -c orcastream -n '__orcastream_at ""' -f
{words}
"""


def bash(places: Sequence[Place]) -> str:
    """For bash."""
    return _BASH.format(cases=_cases(places, 'words="{}"', lambda word: word.text))


def zsh(places: Sequence[Place]) -> str:
    """For zsh."""
    return _ZSH.format(cases=_cases(places, "found=({})", _described))


def fish(places: Sequence[Place]) -> str:
    """For fish."""
    lines = [_fish_line(place, word) for place in places for word in place.words]
    paths = " ".join(place.path for place in places if place.path)
    return _FISH.format(paths=paths, words="\n".join(lines))


SCRIPTS: Final[Mapping[str, Callable[[Sequence[Place]], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _cases(places: Sequence[Place], setting: str, shown: Callable[[Word], str]) -> str:
    """Return the common part; `setting` is the shell's assignment of the words found, each rendered by `shown`."""
    values = [
        f'    "{place.path} {word.text}") {setting.format(" ".join(word.choices))} ;;'
        for place, word in _with_values(places)
    ]
    words = [f'      "{place.path}") {setting.format(" ".join(map(shown, place.words)))} ;;' for place in places]
    return _CASES.format(paths=_alternatives(places), values="\n".join(values), words="\n".join(words))


def _with_values(places: Sequence[Place]) -> Iterator[tuple[Place, Word]]:
    for place in places:
        for word in place.words:
            if word.choices:
                yield place, word


def _alternatives(places: Sequence[Place]) -> str:
    """Return all places after the first, as a `case` pattern."""
    return "|".join(place.path for place in places if place.path)


def _described(word: Word) -> str:
    return _quoted(f"{word.text}:{word.summary}")


def _fish_line(place: Place, word: Word) -> str:
    where = f"complete -c orcastream -n '__orcastream_at \"{place.path}\"'"
    about = f"-d {_quoted(word.summary)}"
    if not word.text.startswith("--"):
        return f"{where} -a {word.text} {about}"
    values = f" -xa '{' '.join(word.choices)}'" if word.choices else " -r" if word.takes_value else ""
    return f"{where} -l {word.text[2:]}{values} {about}"


def _quoted(text: str) -> str:
    """Return the text in single quotes, for all three shells."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"
