"""From a request to tasks of the engine, and from what the engine tells to an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from nearlm.mixing import Memory
from nearlm.serve.answers import Json, Style, Usage
from nearlm.serve.catalog import Catalog, Chosen
from nearlm.serve.errors import APIError, refuse
from nearlm.serve.limits import Limits
from nearlm.serve.requests import ChatRequest, CompletionRequest, Extension
from nearlm.serve.tasks import Delta, Event, Failure, PromptRead, Token, Wish


@dataclass(frozen=True)
class Order:
    """All that one request wants of the engine, and how it is answered."""

    chosen: Chosen
    wishes: list[Wish]
    style: Style
    echo: bool = False

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(len(wish.prompt) for wish in self.wishes)


class Counter:
    """Takes requests: checks them against the limits and turns them into orders."""

    def __init__(self, catalog: Catalog, limits: Limits):
        self._catalog = catalog
        self._limits = limits

    def completion(self, asked: CompletionRequest) -> Order:
        """Take a completion."""
        chosen = self._catalog.choose(asked.model)
        prompts = [self.encode(chosen, prompt) for prompt in asked.prompts]
        if not prompts:
            raise refuse("there is no prompt; give at least one", "prompt")
        self._check_choices(len(prompts) * asked.n)
        most = 16 if asked.max_tokens is None else asked.max_tokens
        if not most and not asked.echo:
            raise refuse("max_tokens is 0, which is for scoring a prompt: add echo and logprobs", "max_tokens")
        scored = bool(asked.echo) and (asked.logprobs is not None or asked.nearlm.explain)
        wishes = [
            Wish(
                prompt=prompt,
                memory=self._memory(chosen, asked.nearlm),
                max_new_tokens=self._room(chosen, prompt, most),
                choices=asked.n,
                sampling=asked.sampling,
                stop=asked.stops,
                alternatives=asked.logprobs,
                neighbors=asked.nearlm.neighbors if asked.nearlm.explain else None,
                score_prompt=scored,
                drafter=chosen.served.drafter,
            )
            for prompt in prompts
        ]
        name = asked.model or chosen.served.name
        logprobs = asked.logprobs is not None
        style = Style.of(chosen.served, name, chat=False, logprobs=logprobs, explain=asked.nearlm.explain)
        return Order(chosen, wishes, style, bool(asked.echo))

    def chat(self, asked: ChatRequest) -> Order:
        """Take a chat."""
        chosen = self._catalog.choose(asked.model)
        messages = [{"role": message.role, "content": message.text} for message in asked.messages]
        prompt = chosen.served.vocabulary.encode_chat(messages)
        self._check_prompt(prompt)
        self._check_choices(asked.n)
        most = asked.max_completion_tokens or asked.max_tokens
        wish = Wish(
            prompt=prompt,
            memory=self._memory(chosen, asked.nearlm),
            max_new_tokens=self._room(chosen, prompt, most),
            choices=asked.n,
            sampling=asked.sampling,
            stop=asked.stops,
            alternatives=(asked.top_logprobs or 0) if asked.logprobs else None,
            neighbors=asked.nearlm.neighbors if asked.nearlm.explain else None,
            drafter=chosen.served.drafter,
        )
        name = asked.model or chosen.served.name
        explain = asked.nearlm.explain
        style = Style.of(chosen.served, name, chat=True, logprobs=bool(asked.logprobs), explain=explain)
        return Order(chosen, [wish], style)

    def score(self, name: str | None, text: str, extension: Extension) -> Order:
        """Take a text to score: all of it is a prompt that is explained."""
        chosen = self._catalog.choose(name)
        prompt = self.encode(chosen, text)
        if len(prompt) < 2:
            raise refuse(f"the text has {len(prompt)} token, expected at least two", "text")
        self._room(chosen, prompt, 0)
        memory = self._memory(chosen, extension)
        wish = Wish(prompt, memory, 0, neighbors=extension.neighbors if extension.explain else 0, score_prompt=True)
        style = Style.of(chosen.served, name or chosen.served.name, chat=False, logprobs=False, explain=True)
        return Order(chosen, [wish], style, True)

    def encode(self, chosen: Chosen, prompt: str | Sequence[int]) -> list[int]:
        """Return the tokens of a prompt: those of a text begin like a document of the store."""
        served = chosen.served
        if isinstance(prompt, str):
            ids = [*served.store.manifest.bos, *served.vocabulary.encode(prompt)]
        else:
            ids = list(prompt)
            wrong = next((token for token in ids if token >= served.engine.lm.vocab_size), None)
            if wrong is not None:
                raise refuse(f"token {wrong} is not in the vocabulary of {served.engine.lm.vocab_size}", "prompt")
        self._check_prompt(ids)
        return ids

    def _check_prompt(self, ids: list[int]) -> None:
        if not ids:
            raise refuse("the prompt is empty and the tokenizer adds no BOS to begin with; give some text", "prompt")
        most = self._limits.max_prompt_tokens
        if len(ids) > most:
            raise refuse(f"the prompt has {len(ids)} tokens, the server allows {most}", "prompt", "prompt_too_long")

    def _check_choices(self, count: int) -> None:
        most = self._limits.max_choices
        if count > most:
            raise refuse(f"{count} continuations are asked for, the server allows {most}", "n", "too_many_choices")

    def _room(self, chosen: Chosen, prompt: list[int], wanted: int | None) -> int:
        """Return how many tokens may be added; None asks for as many as fit."""
        limit = chosen.served.engine.lm.limit
        left = self._limits.max_new_tokens if limit is None else limit - len(prompt)
        if wanted is None and left > 0:
            return min(left, self._limits.max_new_tokens)
        wanted = wanted or 0
        if wanted > self._limits.max_new_tokens:
            most = self._limits.max_new_tokens
            raise refuse(f"max_tokens is {wanted}, the server allows {most}", "max_tokens", "max_tokens_too_large")
        if limit is not None and (wanted > left or left < 0):
            message = f"the model reads {limit} tokens; the prompt has {len(prompt)}, and {wanted} more are asked for"
            raise refuse(message, "max_tokens", "context_length_exceeded")
        return wanted

    def _memory(self, chosen: Chosen, extension: Extension) -> Memory | None:
        if not (chosen.memory and extension.memory):
            return None
        return chosen.served.memory_for(extension.settings)


async def events(order: Order) -> AsyncIterator[tuple[int, Event]]:
    """Have an order computed, and yield what comes of it; whoever stops listening stops the computation."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def tell(number: int, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            loop.call_soon_threadsafe(queue.put_nowait, (number, event))

    engine = order.chosen.served.engine
    tasks = engine.submit(order.wishes, tell)
    open_ends = sum(wish.choices if wish.max_new_tokens else 1 for wish in order.wishes)
    try:
        while open_ends:
            number, event = await queue.get()
            if isinstance(event, Failure):
                raise event.error
            yield number, event
            ends = isinstance(event, Delta) and event.finish is not None
            read = isinstance(event, PromptRead) and not order.wishes[number].max_new_tokens
            open_ends -= ends or read
    finally:
        engine.cancel(tasks)


def echoed(order: Order, number: int, read: PromptRead) -> Delta:
    """Return a prompt as the beginning of its answer."""
    wish = order.wishes[number]
    show = order.chosen.served.vocabulary.show
    decode = order.chosen.served.vocabulary.decode
    tokens = []
    if wish.score_prompt:
        first = Token(wish.prompt[0], None)
        begin = 0
        for token in [first, *read.tokens]:
            tokens.append(replace(token, offset=begin))
            begin += len(show([token.id]))
    return Delta(0, decode(wish.prompt), tokens, None if wish.max_new_tokens else "length")


async def answer(order: Order) -> Json:
    """Compute an order and write its whole answer."""
    parts: dict[tuple[int, int], list[Delta]] = {}
    async for number, event in events(order):
        if isinstance(event, PromptRead) and order.echo:
            for choice in range(order.wishes[number].choices):
                parts.setdefault((number, choice), []).append(echoed(order, number, event))
        elif isinstance(event, Delta):
            parts.setdefault((number, event.choice), []).append(event)
    choices = []
    written = 0
    for index, place in enumerate(_places(order)):
        own = parts[place]
        written += own[-1].count
        choices.append(order.style.choice(index, _joined(order, own), part=False))
    return order.style.whole(choices, Usage(order.prompt_tokens, written))


def _places(order: Order) -> list[tuple[int, int]]:
    """Return prompt and choice of each of an answer's choices."""
    return [(number, choice) for number, wish in enumerate(order.wishes) for choice in range(wish.choices)]


def _joined(order: Order, parts: list[Delta]) -> Delta:
    shift = len(parts[0].text) if order.echo else 0
    tokens = [
        token if order.echo and not place else replace(token, offset=token.offset + shift)
        for place, part in enumerate(parts)
        for token in part.tokens
    ]
    return Delta(0, "".join(part.text for part in parts), tokens, parts[-1].finish, parts[-1].count)


async def chunks(order: Order, with_usage: bool) -> AsyncIterator[Json]:
    """Compute an order and write its answer part by part."""
    style = order.style
    index = {place: number for number, place in enumerate(_places(order))}
    shifts = dict.fromkeys(range(len(order.wishes)), 0)
    written = 0
    async for number, event in events(order):
        if isinstance(event, PromptRead):
            for choice in range(order.wishes[number].choices):
                place = index[number, choice]
                if style.chat:
                    yield style.chunk([style.opening(place)])
                elif order.echo:
                    prompt = echoed(order, number, event)
                    shifts[number] = len(prompt.text)
                    yield style.chunk([style.choice(place, prompt, part=True)])
        elif isinstance(event, Delta):
            written += event.count
            place = index[number, event.choice]
            yield style.chunk([style.choice(place, event, part=True, shift=shifts[number])])
    if with_usage:
        yield style.chunk([], Usage(order.prompt_tokens, written))


def as_error(error: Exception) -> APIError:
    """Return what a client is told of an error in the middle of a stream."""
    return error if isinstance(error, APIError) else APIError(500, "the computation failed", code="internal_error")
