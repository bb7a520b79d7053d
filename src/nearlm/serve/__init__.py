"""An HTTP server for models with memories, compatible with OpenAI's API, and a page that shows the memory at work."""

from nearlm.serve.limits import Limits
