"""Settings of the commands `chat`, `tokenize` and `completion`."""

from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import CliPositionalArg

from orcastream.cli.variables import CommandSettings


class ChatSettings(CommandSettings):
    """Chat with a served model in the terminal; if standard input is piped, each line is one question."""

    from_environment = frozenset({"url", "api_key", "served_model_name"})

    url: str = Field(
        "http://127.0.0.1:8000",
        pattern="^https?://",
        json_schema_extra={"allowed": "a URL that begins with http:// or https://"},
        description="URL of the gateway.",
    )
    api_key: SecretStr | None = Field(None, description="API key, if the gateway requires one.")
    served_model_name: str | None = Field(None, description="Model to chat with; none: the first served model.")
    system: str | None = Field(None, description="System message, sent before the conversation.")
    max_tokens: int | None = Field(
        None, ge=1, description="Maximum answer length; none: what the model's context leaves. [tokens]"
    )
    temperature: float = Field(0.0, ge=0, le=100, description="0 is greedy.")
    timeout_s: float = Field(
        120.0, gt=0, le=3600, description="How long to wait for an unresponsive gateway before a question fails. [s]"
    )

    @field_validator("api_key")
    @classmethod
    def _fits_into_a_header(cls, api_key: SecretStr | None) -> SecretStr | None:
        if api_key is not None and not all("!" <= char <= "~" for char in api_key.get_secret_value()):
            raise ValueError("printable ASCII characters without spaces")
        return api_key


class TokenizeSettings(CommandSettings):
    """Print the token ids of a text as a list that can be pasted into a JSON payload."""

    from_environment = frozenset({"model"})

    text: CliPositionalArg[str] = Field(description="The text; -: read standard input.")
    model: str = Field("", description="Directory or hub id of the model; none: the demo model.")
    chat: bool = Field(False, description="Treat the text as a user's message and apply the model's chat template.")


class CompletionSettings(CommandSettings):
    """Print a shell script that completes commands, flags and their values."""

    shell: CliPositionalArg[Literal["bash", "zsh", "fish"]] = Field(description="The shell to write the script for.")
