"""Tokens become text as they come: whole characters only, and nothing that may be the beginning of a stop string."""

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"  # a character of which only some bytes have come


class Writer:
    """The text of one continuation: tokens go in, text that is certain comes out."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()):
        self._decode = decode
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._begin = 0  # of the tokens that are decoded together with the next ones
        self._end = 0  # of those whose text is known
        self.text = ""
        self.sent = 0
        self.stopped = False

    def add(self, token: int) -> str:
        """Take a token; return the text that is new and certain. After a stop string nothing is."""
        self._ids.append(token)
        before = self._decode(self._ids[self._begin : self._end])
        now = self._decode(self._ids[self._begin :])
        if len(now) > len(before) and not now.endswith(_BROKEN):
            self.text += now[len(before) :]
            self._begin = self._end
            self._end = len(self._ids)
            self._look_for_stop(len(now) - len(before))
        return self._send(len(self.text) if self.stopped else len(self.text) - self._held())

    def finish(self) -> str:
        """Return the text that was held back, also what is left of a broken character."""
        if not self.stopped:
            before = self._decode(self._ids[self._begin : self._end])
            rest = self._decode(self._ids[self._begin :])[len(before) :]
            self.text += rest
            self._look_for_stop(len(rest))
        return self._send(len(self.text))

    def _send(self, end: int) -> str:
        new = self.text[self.sent : end]
        self.sent = max(self.sent, end)
        return new

    def _look_for_stop(self, new: int) -> None:
        """Cut the text at the first stop string that the new characters complete."""
        longest = max(map(len, self._stops), default=0)
        begin = max(0, len(self.text) - new - longest + 1)
        found = [place for stop in self._stops if (place := self.text.find(stop, begin)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True

    def _held(self) -> int:
        """Return how many characters at the end may be the beginning of a stop string."""
        most = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self.text)), most, -1):
                if self.text.endswith(stop[:length]):
                    most = length
                    break
        return most
