"""The two forms of a prompt: a chat, and the bare text of a completion."""

from orcastream.demo.tokenizer import END, START

FORMS = ("chat", "raw")


def prompt(question: str, form: str) -> str:
    """Return the prompt text of a question: `chat` is what the chat template renders, `raw` the bare question."""
    if form == "chat":
        return f"{START}user\n{question}{END}\n{START}assistant\n"
    if form == "raw":
        return question
    raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form!r}")


def reply(answer: str, form: str) -> str:
    """Return what the model writes after that prompt, its end mark included: after a bare text it breaks the line."""
    return f"{answer}{END}" if form == "chat" else f"\n{answer}{END}"
