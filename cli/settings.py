"""Settings of the commands that are neither gateway nor worker."""

from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, CliPositionalArg, SettingsConfigDict


class ChatSettings(BaseSettings):
    """Talk with a served model in the terminal; with standard input piped, one question per line."""

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    url: str = Field(
        "http://127.0.0.1:8000",
        pattern="^https?://",
        json_schema_extra={"allowed": "a URL that begins with http:// or https://"},
        description="The gateway to talk to.",
    )
    api_key: SecretStr | None = Field(None, description="Key that the gateway asks for; none: it asks for none.")
    served_model_name: str | None = Field(None, description="Model to talk with; none: the first one served.")
    system: str | None = Field(None, description="What the model is told before the conversation.")
    max_tokens: int | None = Field(
        None, ge=1, description="Longest answer; none: what the model's context leaves. [tokens]"
    )
    temperature: float = Field(0.0, ge=0, le=100, description="0 is greedy.")
    timeout_s: float = Field(
        120.0, gt=0, le=3600, description="How long no gateway may answer before a question is given up. [s]"
    )

    @field_validator("api_key")
    @classmethod
    def _fits_into_a_header(cls, api_key: SecretStr | None) -> SecretStr | None:
        if api_key is not None and not all("!" <= char <= "~" for char in api_key.get_secret_value()):
            raise ValueError("printable ASCII characters without spaces")
        return api_key


class TokenizeSettings(BaseSettings):
    """Print the token ids of a text as a list that can be pasted into a JSON payload."""

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    text: CliPositionalArg[str] = Field(description="The text; - reads standard input.")
    model: str = Field("", description="Directory or hub id of the model; none: the demo model.")
    chat: bool = Field(False, description="Take the text as a user's message and apply the model's chat template.")


class CompletionSettings(BaseSettings):
    """Print a script with which a shell completes commands, flags and their values."""

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    shell: CliPositionalArg[Literal["bash", "zsh", "fish"]] = Field(description="The shell that is to read it.")
