"""Errors as OpenAI's clients expect them: a status, and what, why and which parameter in JSON."""

from dataclasses import dataclass
from typing import Any

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


@dataclass(eq=False)
class APIError(Exception):
    """A request that is refused: HTTP status, a line for people, the parameter and a code for programs."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def headers(self) -> dict[str, str]:
        """The headers that a client wants to see with it."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    def to_json(self) -> dict[str, Any]:
        """Return the body of the response."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        message = self.message.encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def refuse(message: str, param: str | None = None, code: str | None = None) -> APIError:
    """Make the error of a request that can never be served as it is."""
    return APIError(400, message, param, code)
