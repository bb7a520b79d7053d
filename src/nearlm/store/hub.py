"""Stores on the Hugging Face Hub, as dataset repositories: plain files, of which none is ever executed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearlm.base import FetchError, Job, Reporter, files, to_json
from nearlm.store.datastore import Datastore
from nearlm.store.inventory import Inventory, read_inventory
from nearlm.store.layout import Layout
from nearlm.store.sharing import CARD, receive

_KIND = "dataset"


def upload(folder: Path, inventory: Inventory, card: str, repository: str, *, private: bool, reporter: Reporter) -> str:
    """Upload a store as one commit; files that an interrupted upload has brought there are not sent again."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    with _one_line(f"cannot push to {repository}"):
        api.create_repo(repository, repo_type=_KIND, private=private or None, exist_ok=True)
        there = set(api.list_repo_files(repository, repo_type=_KIND))
        shared = Layout(folder).shared.name
        notes = {CARD: card.encode(), shared: files.stamped_bytes(to_json(inventory))}
        with reporter.bar("uploading", inventory.bytes, "bytes") as advance:
            added = [CommitOperationAdd(name, data) for name, data in notes.items()]
            for name, file in inventory.files.items():
                operation = CommitOperationAdd(name, folder / name)
                api.preupload_lfs_files(repository, [operation], repo_type=_KIND)
                added.append(operation)
                advance(file.bytes)
        kept = {operation.path_in_repo for operation in added} | {".gitattributes"}
        gone = [CommitOperationDelete(name) for name in sorted(there - kept)]
        api.create_commit(repository, [*added, *gone], commit_message="Push a store of nearlm", repo_type=_KIND)
    return f"hf:{repository}"


def download(repository: str, folder: Path, revision: str | None, reporter: Reporter) -> Datastore:
    """Download a store file by file, resuming what was interrupted; all files are of one commit."""
    from huggingface_hub import HfApi

    api = HfApi()
    layout = Layout(folder)
    place = folder.absolute().with_name(f"{folder.absolute().name}.pull")
    job = Job(place, "pull")
    job.check_folder()
    with _one_line(f"cannot pull {repository}"):
        commit = api.repo_info(repository, repo_type=_KIND, revision=revision).sha
        job.resume({"repository": repository, "commit": commit})

        def fetch(name: str) -> Path:
            where: Any = api.hf_hub_download(repository, name, repo_type=_KIND, revision=commit, local_dir=place)
            return Path(where)

        inventory = read_inventory(fetch(layout.shared.name))
        store = receive(inventory, folder, fetch, reporter, move=True)
    job.remove_folder()
    return store


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Turn what the Hub or the network refuses into one line; progress is ours to show."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        yield
    except EntryNotFoundError as error:
        raise FetchError(f"{what}: it holds no store that `nearlm push` made ({_first(error)})") from error
    except RepositoryNotFoundError as error:
        hint = "check its name, or log in with `hf auth login` if it is private"
        raise FetchError(f"{what}: there is no such repository ({_first(error)}); {hint}") from error
    except (HfHubHTTPError, HFValidationError, RuntimeError) as error:  # the last: an upload that was broken off
        why = _first(error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else error)
        raise FetchError(f"{what}: {why}; log in with `hf auth login`, or repeat the command") from error
    except OSError as error:
        if getattr(error, "filename", None) is not None:  # of this machine's disk
            raise
        raise FetchError(f"{what}: {_first(error)}; repeat the command when the network is there") from error
    finally:
        if shown:
            enable_progress_bars()


def _first(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
