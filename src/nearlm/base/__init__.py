"""What everything rests on: errors, atomic files, resumable jobs, mapped arrays, progress. Knows nothing of LMs."""

from nearlm.base.arrays import Array, ArrayFile, Doubles, Floats, Ids, Int32s, Ints, Reals, ShardedArray, blocks
from nearlm.base.cache import cache_dir, cache_lock, store_folder
from nearlm.base.errors import (
    FetchError,
    MissingExtraError,
    ModelError,
    NearLMError,
    NearLMWarning,
    OptionError,
    StoreError,
    TextError,
    check_at_least,
    import_extra,
)
from nearlm.base.files import Json, canonical_hash
from nearlm.base.jobs import Columns, Job, Pieces
from nearlm.base.progress import QUIET, Advance, Rate, Reporter, duration, printable, size
from nearlm.base.ram import available_ram, check_ram, parse_size
from nearlm.base.records import (
    FileInfo,
    check_files,
    check_names,
    from_json,
    read_if_there,
    read_record,
    to_json,
    write_record,
)
from nearlm.base.tables import line_up
from nearlm.base.verification import check_before_use, check_that
