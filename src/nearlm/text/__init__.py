"""Any text → documents → tokens → windows; the named corpora and their downloads."""

from nearlm.text.corpus import Corpus
from nearlm.text.downloads import SMOLLM2, extract_member, fetch
from nearlm.text.reading import SCORE_BATCH_TOKENS, Reading, TokenText, read_once, read_text
from nearlm.text.segments import Framing, Segment
from nearlm.text.selection import Selection
from nearlm.text.source import Texts, TextSource
from nearlm.text.split import ASIDE, TEST, TRAIN, VALID, Split, Survey, passages
from nearlm.text.tokens import (
    TokenStream,
    check_not_empty,
    check_predictable,
    document_bounds,
    finished_stream,
    read_checksums,
    tokenise,
)
from nearlm.text.windows import Batch, Windows, check_window, fill_batch, plan_batches, plan_shards, plan_windows
