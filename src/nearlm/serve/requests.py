"""The bodies of requests: OpenAI's fields, and `nearlm` for what the memory adds. What is not supported is refused."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nearlm.serve.sampling import Sampling
from nearlm.store import SearchSettings

_MOST_STOPS = 16
_LONGEST_STOP = 200
Stop = Annotated[str, Field(min_length=1, max_length=_LONGEST_STOP)]
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {  # fields that would change the answer, and the values that change nothing
    "best_of": (None, 1),
    "suffix": (None, ""),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "functions": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
}


class Extension(BaseModel):
    """What the memory adds: explanations, and settings for this request alone."""

    model_config = ConfigDict(extra="forbid")
    explain: bool = False
    neighbors: int = Field(default=5, ge=0, le=32)
    memory: bool = True
    lam: float | None = Field(default=None, ge=0, le=1)
    knn_temperature: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)
    k: int | None = Field(default=None, ge=1, le=4096)

    @property
    def settings(self) -> SearchSettings:
        """The settings of the memory that are given."""
        return SearchSettings(lam=self.lam, knn_temperature=self.knn_temperature, k=self.k)


class _Asked(BaseModel):
    """What all requests have."""

    model: str | None = Field(default=None, max_length=500)
    nearlm: Extension = Extension()

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        """Take null for what is not given, as OpenAI's API does."""
        if isinstance(given, dict):
            return {name: value for name, value in given.items() if value is not None}
        return given


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    include_usage: bool = False


class _Generated(_Asked):
    """What completions and chats have in common."""

    n: int = Field(default=1, ge=1, le=128)
    stop: Stop | Annotated[list[Stop], Field(max_length=_MOST_STOPS)] | None = None
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=0)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Any = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for name, harmless in _UNSUPPORTED.items():
                if name in given and given[name] not in harmless:
                    raise ValueError(f"{name} is not supported; leave it out")
        return given

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        temperature = 1.0 if self.temperature is None else self.temperature
        return Sampling(temperature, 1.0 if self.top_p is None else self.top_p, self.seed)

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


Ids = list[Annotated[int, Field(ge=0, lt=1 << 31)]]


class CompletionRequest(_Generated):
    """POST /v1/completions."""

    prompt: str | Ids | list[str] | list[Ids] = Field(union_mode="left_to_right")
    max_tokens: int | None = Field(default=16, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = False

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or more."""
        prompt: Any = self.prompt
        single = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        return [prompt] if single else prompt


class Part(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a conversation."""

    role: str = Field(min_length=1, max_length=50)
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """Its whole text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(_Generated):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


class ScoreRequest(_Asked):
    """POST /v1/nearlm/score."""

    text: str
